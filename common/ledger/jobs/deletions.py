"""Deletions: a closed job leaves the ledger for good, in pieces; its audit rows stay.

From `begin` on nothing runs the job again, reads its batches or archives it. The row of the job goes
last, so that a deletion that was cut off is found and goes on, and so that nobody else gets the output
directory before the files of the job are gone.
"""

from collections.abc import Callable

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Kind
from nightshift.common.ledger.jobs import archives, jobs, table_commits

BEGIN = text("""
    INSERT INTO deletions AS d (job_id, output) VALUES (:id, :output)
    ON CONFLICT (job_id) DO UPDATE SET output = d.output OR excluded.output
    RETURNING output, xmax = 0 AS is_new
""")
"""Notes that a job is being deleted."""

KEEP_REAPERS_OUT = text("""
    INSERT INTO job_archives AS a (job_id, generation) VALUES (:id, :token)
    ON CONFLICT (job_id) DO UPDATE SET generation = excluded.generation
""")
"""Takes the job from a reaper that archives it, and from all that come later."""

PAGE_ROWS = 5_000
"""Rows that one transaction deletes of a table, about."""

REST = (
    "DELETE FROM job_counters WHERE job_id = :id",
    "DELETE FROM version_counters WHERE job_id = :id",
    "DELETE FROM job_spending WHERE job_id = :id",
    "DELETE FROM input_files WHERE job_id = :id",
    "DELETE FROM job_archives WHERE job_id = :id",
    "DELETE FROM job_watches WHERE job_id = :id",
    "DELETE FROM whole_messages WHERE job_id = :id",
    "DELETE FROM table_files WHERE job_id = :id",
    "DELETE FROM table_commits WHERE job_id = :id",
    "DELETE FROM job_tables WHERE job_id = :id",
    "DELETE FROM holds WHERE subject = CAST(:id AS text) AND kind IN ('finish', 'archive', 'look')",
    "DELETE FROM deletions WHERE job_id = :id",
    "DELETE FROM jobs WHERE id = :id",
)
"""What is left of a job without batches, in order."""


def takes_output(connection: Connection, job_id: int) -> bool:
    """Whether the job is being deleted with its output."""
    statement = text("SELECT EXISTS (SELECT FROM deletions WHERE job_id = :id AND output)")
    return bool(connection.scalar(statement, {"id": job_id}))


UNDELIVERED = text("""
    SELECT id FROM api_batches WHERE job_id = :id
      AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling') FOR UPDATE
""")
"""The batch of a job, whose files of results are still to be written."""


def begin(
    connection: Connection,
    job_id: int,
    *,
    output: bool,
    allowed: Callable[[Connection], object] = lambda _: None,
) -> tuple[bool, bool]:
    """Record that a closed job is being deleted, with its `output` if somebody has asked for that now or
    before. Return whether the output goes, and whether the deletion is new.

    BadInput for a job that is not closed, and for one of a batch whose results are not delivered; and whatever
    `allowed` raises, which is called once the row of the job is locked.
    """
    # A batch comes before its job, as everywhere.
    undelivered = connection.scalar(UNDELIVERED, {"id": job_id})
    if undelivered is not None:
        raise BadInput(
            f"job {job_id} belongs to the batch {undelivered}, whose results are not delivered yet: "
            "cancel the batch, or wait for its end"
        )
    state = jobs.lock(connection, job_id)
    allowed(connection)
    if not state.over:
        raise BadInput(f"job {job_id} is {state}: `nightshift cancel {job_id}` ends it first")
    table_commits.refuse_under_way(connection, job_id)
    closed = connection.scalar(text("SELECT closed_at FROM jobs WHERE id = :id"), {"id": job_id})
    if closed is None:
        raise BadInput(
            f"job {job_id} is {state}, and its files are not finished yet: a reaper does that; delete "
            "the job in a moment"
        )
    begun = connection.execute(BEGIN, {"id": job_id, "output": output}).one()
    archives.lock(connection, job_id)
    hold = holds.take(connection, Kind.ARCHIVE, job_id, "delete", over=True, for_good=True)
    assert hold is not None
    connection.execute(KEEP_REAPERS_OUT, {"id": job_id, "token": hold.token})
    return begun.output, begun.is_new


def delete_page(connection: Connection, job_id: int) -> bool:
    """Deletes about PAGE_ROWS batches, attempts or row errors of a job; False where none is left."""
    for table in archives.TABLES:
        stop = archives.stop_of_page(connection, table, job_id, 0, PAGE_ROWS)
        if stop is not None and archives.delete_between(connection, table, job_id, 0, stop):
            return True
    return False


def end(connection: Connection, job_id: int) -> None:
    """Deletes what is left of a job without batches. BadInput where another call has done so."""
    jobs.lock(connection, job_id)  # the job before its deletion, as in `begin`
    for statement in REST:
        connection.execute(text(statement), {"id": job_id})


def archived_files(connection: Connection, job_id: int) -> list[str]:
    """Names of the files that hold the batches of the job, where they left the ledger."""
    files = connection.scalar(
        text("SELECT files FROM job_archives WHERE job_id = :id"), {"id": job_id}
    )
    return [file["name"] for file in files or ()]


def begun(connection: Connection) -> list[int]:
    """Jobs whose deletion has begun, and was cut off or is under way."""
    return list(connection.scalars(text("SELECT job_id FROM deletions ORDER BY job_id")))


def closed_and_kept(connection: Connection) -> list[int]:
    """Closed jobs whose rows are all in Postgres, and which nobody deletes."""
    statement = text("""
        SELECT j.id FROM jobs j WHERE j.closed_at IS NOT NULL AND j.archived_at IS NULL
          AND NOT EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id)
        ORDER BY j.id
    """)
    return list(connection.scalars(statement))


def unclosed(connection: Connection) -> list[int]:
    """The jobs that are open, or over with files that are not in their place yet."""
    statement = text("SELECT id FROM jobs WHERE closed_at IS NULL ORDER BY id")
    return list(connection.scalars(statement))
