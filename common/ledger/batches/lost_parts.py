"""Batches whose part is gone from the store: their rows run again."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import jobs, table_commits
from nightshift.common.states import JobState

REOPEN = text("""
    WITH locked AS (
        SELECT b.id FROM batches b
        JOIN unnest(CAST(:ids AS bigint[]), CAST(:names AS text[])) AS lost (id, part_name)
          ON lost.id = b.id AND lost.part_name = b.part_name
        WHERE b.job_id = :id AND b.state IN ('done', 'dead', 'pending')
        ORDER BY b.id FOR UPDATE OF b
    ), forgotten AS (
        DELETE FROM row_errors e USING locked
        WHERE e.job_id = :id AND e.batch_id = locked.id
    ), reopened AS (
        -- As if the batch were new. Its last owner must not name the old part again.
        UPDATE batches b
        SET state = 'pending', failures = 0, losses = 0, not_before = NULL, owner = NULL,
            last_error = NULL, redo = NULL, redo_count = 0, rows_failed = 0, part_name = NULL,
            part_bytes = NULL, part_checksum = NULL, prompt_tokens = 0, output_tokens = 0
        FROM locked WHERE b.id = locked.id
        RETURNING b.row_count
    )
    SELECT count(*) AS batches, coalesce(sum(row_count), 0)::bigint AS rows FROM reopened
""")
"""Makes batches pending whose part is still the one that is gone."""


def redo(connection: Connection, job_id: int, lost: Sequence[tuple[str, int]]) -> Retried:
    """Rows of parts that are gone, by name and batch, run again; a job that is over runs again for
    them. A part that another commit has replaced meanwhile is passed over.

    Raises BadInput for a cancelled job, and where the batches are in an archive.
    """
    # The engine before the job, as where failed loads fail jobs.
    loads.lock(connection, job_id)
    state = jobs.lock(connection, job_id)
    if state is JobState.CANCELLED:
        raise BadInput(f"job {job_id} is cancelled, which is final: none of its rows run again")
    jobs.refuse_archived(connection, job_id)
    table_commits.refuse_under_way(connection, job_id)
    given = {
        "id": job_id,
        "ids": [batch for _, batch in lost],
        "names": [name for name, _ in lost],
    }
    moved = connection.execute(REOPEN, given).one()
    reopened = state.over and moved.batches > 0
    if reopened:
        jobs.reopen(connection, job_id)
        job = jobs.get(connection, job_id)
        assert job is not None, f"job {job_id} is locked"
        loads.forgive(connection, job.spec.pool, job.engine_key)
    if moved.batches:
        connection.execute(
            text("UPDATE jobs SET retries = retries + 1 WHERE id = :id"), {"id": job_id}
        )
        jobs.judge_anew(connection, job_id)
    after = JobState.RUNNING if reopened else state
    return Retried(moved.rows, moved.batches, waiting=0, reopened=reopened, state=after)
