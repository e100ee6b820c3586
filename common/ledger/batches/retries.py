"""Retry: failed rows run again beside the answers of their part; undo takes a retry back."""

from dataclasses import dataclass, field, replace

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger.batches import similar_errors
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import jobs, table_commits
from nightshift.common.ledger.statements import statement
from nightshift.common.states import JobState, RowErrorKind


@dataclass(frozen=True, slots=True)
class Retried:
    """What runs again: failed rows and their batches.

    `waiting` are batches that had no answer yet and go on beside them, `reopened` says that the
    job was over, `was` is the state of the job before, and `state` that of now. `last` is the place
    in the dataset up to which the job was searched; None when nothing is left behind it.
    """

    rows: int
    batches: int
    waiting: int
    reopened: bool
    state: JobState
    last: int | None = None
    was: JobState | None = field(default=None, compare=False)

    def then(self, later: "Retried") -> "Retried":
        """Both pieces of one retry together; batches of the first wait for the second."""
        return replace(
            later,
            rows=self.rows + later.rows,
            batches=self.batches + later.batches,
            waiting=self.waiting,
            reopened=self.reopened or later.reopened,
            was=self.was,
        )


def retry(
    connection: Connection,
    job_id: int,
    *,
    failed: bool,
    dead: bool,
    kind: RowErrorKind | None = None,
    group: str | None = None,
    after: int = -1,
    most_rows: int | None = None,
) -> Retried:
    """Failed rows of batches that are over run again; a job that is over runs again for them.

    `failed` takes every failed row, or those of one `kind`; `dead` takes the failed rows of dead
    batches; with a `group` of messages (`similar_errors`) either takes those that say so. Rows of a
    dead batch run again for the kind `batch_dead` only: for another kind the batch would become
    done with rows that never ran. A job that failed with its batches still waiting goes on. Raises
    BadInput for a cancelled job.

    With `most_rows` only a piece of the job is searched, behind the place `after`: about so many
    failed rows. The next piece begins at `last`.
    """
    # The engine before the job, as where failed loads fail jobs.
    loads.lock(connection, job_id)
    state = jobs.lock(connection, job_id)
    if state is JobState.CANCELLED:
        raise BadInput(
            f"job {job_id} is cancelled, which is final: the same spec with another output "
            "directory is a new job"
        )
    jobs.refuse_archived(connection, job_id)
    table_commits.refuse_under_way(connection, job_id)
    piece: dict[str, int | None] = {"id": job_id, "after": after, "last": None}
    if most_rows is not None:
        found = connection.scalar(LAST_OF_PIECE, {**piece, "most_rows": most_rows})
        piece["last"] = None if found is None else int(found)
    wanted = {"failed": failed, "dead": dead, "kind": kind, "group": group}
    moved = connection.execute(MAKE_PENDING, {**piece, **wanted}).one()
    left = connection.execute(LEFT, {"id": job_id, "moved": moved.batches}).one()
    stopped_early = state is JobState.FAILED and (left.waiting > 0 or left.dead == 0)
    reopened = state.over and (moved.batches > 0 or stopped_early)
    if reopened:
        jobs.reopen(connection, job_id)
        loads.forgive(connection, left.pool, left.engine_key)
    if reopened or moved.batches:
        jobs.count_change(connection, job_id)
        jobs.judge_anew(connection, job_id)
    return Retried(
        rows=moved.rows,
        batches=moved.batches,
        waiting=left.waiting,
        reopened=reopened,
        was=state,
        state=JobState.RUNNING if reopened else state,
        last=piece["last"],
    )


LAST_OF_PIECE = text("""
    SELECT max(seq) FROM (
        SELECT seq, sum(failed) OVER (ORDER BY seq, id) - failed AS failed_before FROM (
            SELECT seq, id, CASE WHEN state = 'dead' THEN row_count ELSE rows_failed END AS failed
            FROM batches
            WHERE job_id = :id AND seq > :after
              AND (state = 'dead' OR state = 'done' AND rows_failed > 0)
            ORDER BY seq, id LIMIT :most_rows) AS candidates
    ) AS placed WHERE failed_before < :most_rows
""")
"""The place of the last batch of a piece with so many failed rows, or one batch with more."""

MAKE_PENDING = statement(__file__, "make_pending", group_of_message=similar_errors.GROUP)

LEFT = text("""
    SELECT pool, engine_key,
           (SELECT count(*) FROM batches b WHERE b.job_id = j.id AND b.state = 'pending') - :moved
               + (SELECT count(*) FROM batches b WHERE b.job_id = j.id AND b.state = 'queued')
               AS waiting,
           (SELECT count(*) FROM batches b WHERE b.job_id = j.id AND b.state = 'dead') AS dead
    FROM jobs j WHERE id = :id
""")
"""Batches of a job that wait, without those just moved, and dead ones."""


def undo(connection: Connection, job_id: int, limit: int | None = None) -> int:
    """In a job that is over, takes back the retry of rows that did not run again in time: they keep
    the line that stands in their part. Returns how many batches, at most `limit`, are done or dead
    again.
    """
    # Locked, so that no retry opens the job at the same time.
    if not jobs.lock(connection, job_id).over:
        return 0
    return connection.execute(UNDO, {"id": job_id, "limit": limit}).rowcount


UNDO = text("""
    WITH undone AS MATERIALIZED (
        SELECT b.id, EXISTS (SELECT FROM row_errors e
                             WHERE e.job_id = b.job_id AND b.rows @> e.row_index
                               AND e.row_index >= lower(b.rows) AND e.row_index < upper(b.rows)
                               AND e.kind = 'batch_dead') AS was_dead
        FROM batches b
        WHERE b.job_id = :id AND b.state IN ('pending', 'queued') AND b.redo IS NOT NULL
        ORDER BY b.id LIMIT :limit FOR UPDATE
    )
    UPDATE batches b
    SET state = CASE WHEN undone.was_dead THEN 'dead' ELSE 'done' END, not_before = NULL,
        rank = NULL, rows_failed = rows_failed + redo_count, redo = NULL, redo_count = 0
    FROM undone WHERE b.id = undone.id
""")
"""Makes batches that wait for a retry done or dead again."""
