"""A batch of the OpenAI API that was over runs again, since failed rows of its job do."""

from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import deadlines
from nightshift.producer.serve.ledger import api_batch_steps, files, quotas
from nightshift.producer.serve.ledger.api_batches import ApiBatchStatus

WHO = "retry"
"""Who holds a batch while rows of its job are put back."""

LOCK = text("""
    SELECT id, state, input_file_id FROM api_batches
    WHERE job_id = :job_id
      AND (state IN ('completed', 'failed')
           OR state IN ('in_progress', 'finalizing') AND ends_as IS NULL)
    FOR UPDATE
""")
"""The batch of a job that may run again, or that runs."""

REOPEN = text("""
    UPDATE api_batches SET state = 'in_progress',
        in_progress_at = CASE WHEN :runs THEN in_progress_at ELSE now() END,
        expires_at = CASE WHEN :runs THEN expires_at
                          ELSE now() + CAST(completion_window AS interval) END,
        reserved_rows = CASE WHEN :is_over THEN :rows ELSE reserved_rows END,
        reserved_tokens = CASE WHEN :is_over THEN :tokens ELSE reserved_tokens END,
        errors = NULL, finalizing_at = NULL, completed_at = NULL, failed_at = NULL, ends_as = NULL
    WHERE id = :id
""")
"""The batch runs again; no reaper takes it meanwhile, and one that writes its results loses it. Its files
of results stay until there are new ones.
"""

OF_BATCH = text("SELECT state, job_id, expires_at FROM api_batches WHERE id = :id FOR UPDATE")


@dataclass(frozen=True, slots=True)
class Reopened:
    """A batch whose job's rows are put back, and the state that the batch had."""

    hold: Hold
    before: ApiBatchStatus


def reopen(connection: Connection, job_id: int) -> Reopened | None:
    """The batch of a job, over or being finalized before, runs again with a window as long as its first;
    None where the job has no such batch. No reaper finalizes the batch while its rows are put back. BadInput where its input was deleted. The caller locks the job later, if at all: batches come before their jobs.
    """
    found = connection.execute(LOCK, {"job_id": job_id}).one_or_none()
    if found is None:
        return None
    before = ApiBatchStatus(found.state)
    # A file is deleted only while nothing that is open reads it.
    if before.over and not files.keep(connection, found.input_file_id):
        raise BadInput(
            f"the file {found.input_file_id} is deleted or expired: its rows cannot be read again"
        )
    rows, tokens = quotas.again(connection, job_id)
    given = {"id": found.id, "runs": before is ApiBatchStatus.IN_PROGRESS, "is_over": before.over}
    asked = {"rows": rows, "tokens": tokens}
    connection.execute(REOPEN, {**given, **asked})
    hold = holds.take(connection, Kind.API_BATCH, found.id, WHO, over=True)
    assert hold is not None
    return Reopened(hold, before)


def goes_on(connection: Connection, id: str) -> bool:
    """Whether somebody has begun to put rows of the batch back, and has not said that all of them are."""
    return holds.has(connection, Kind.API_BATCH, id, WHO)


def release(connection: Connection, hold: Hold) -> None:
    """The rows of a batch that was reopened are put back, and its job has its deadline: from now on a reaper
    may finalize the batch. If the end of the batch was asked for meanwhile, its job is cancelled.
    """
    found = connection.execute(OF_BATCH, {"id": hold.subject}).one_or_none()
    if found is None or not holds.is_held(connection, hold):
        return
    holds.release(connection, hold)
    if found.state == ApiBatchStatus.IN_PROGRESS:
        deadlines.set_finish_by(connection, found.job_id, found.expires_at)
    else:
        api_batch_steps.cancel_job(connection, found.job_id)
