"""A batch of the OpenAI API that was over runs again, since failed rows of its job do."""

from sqlalchemy import text

from nightshift.common.ledger import deadlines
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.gateway import batch_steps
from nightshift.common.ledger.gateway.batches import BatchStatus

WHO = "retry"
"""Who holds a batch while rows of its job are put back."""

REOPEN = text("""
    UPDATE api_batches SET state = 'in_progress', in_progress_at = now(),
        expires_at = now() + CAST(completion_window AS interval), reserved_rows = rows_failed,
        errors = NULL, ends_as = NULL, finalizing_at = NULL, completed_at = NULL, failed_at = NULL,
        held_by = :who, held_until = now() + make_interval(secs => :hold)
    WHERE job_id = :job_id AND state IN ('completed', 'failed')
    RETURNING id
""")
"""The batch of a job runs again; no reaper takes it meanwhile. Its files of results stay until there are
new ones.
"""

LET_GO = text("""
    UPDATE api_batches SET held_by = NULL, held_until = NULL WHERE id = :id AND held_by = :who
    RETURNING state, job_id, expires_at
""")
"""From now on a reaper may finalize the batch."""


def reopen(connection: Connection, job_id: int, hold_seconds: float) -> str | None:
    """The batch of a job, completed or failed before, runs again with a window as long as its first;
    None where the job has no such batch. No reaper finalizes the batch for `hold_seconds`, in which its
    rows are put back.
    """
    given = {"job_id": job_id, "who": WHO, "hold": hold_seconds}
    found: str | None = connection.scalar(REOPEN, given)
    return found


def let_go(connection: Connection, id: str) -> None:
    """The rows of a batch that was reopened are put back, and its job has its deadline; if the end of the
    batch was asked for meanwhile, its job is cancelled.
    """
    found = connection.execute(LET_GO, {"id": id, "who": WHO}).one_or_none()
    if found is None:
        return
    if found.state == BatchStatus.IN_PROGRESS:
        deadlines.set_finish_by(connection, found.job_id, found.expires_at)
    else:
        batch_steps.cancel_job(connection, found.job_id)
