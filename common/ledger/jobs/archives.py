"""Archives: the batches, attempts and row errors of a closed job leave the ledger for files beside the output, and are
read from there.

The row of the job in `job_archives` says where they are. Whoever moves rows holds that row in each
transaction, so that no two processes move the rows of one job.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql
from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection, lift_time_limit, one_moment
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.states import ARCHIVE_MOVES, ArchiveState

ARCHIVE_LOCK = 0x6E69676802
"""Advisory lock of the choice of a job to archive: one reaper at a time, for one short transaction."""

TABLES = ("row_errors", "attempts", "batches")
"""The tables in the order in which their rows leave: attempts are found by their batches."""

READING_SECONDS = 3600.0
"""Idle timeout of a transaction that reads an archived job."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A Parquet file with the rows of one table; `bytes` and `sha256` as they were written."""

    table: str
    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the rows of a closed job are. `generation` fences who moves them:
    the token of the hold under which the files were last written.
    """

    job_id: int
    state: ArchiveState
    generation: int
    files: tuple[ArchiveFile, ...]

    @property
    def is_kept(self) -> bool:
        """Whether Postgres has every row; else the files do."""
        return self.state is ArchiveState.KEPT


DUE = text(f"""
    SELECT j.id FROM jobs j LEFT JOIN job_archives a ON a.job_id = j.id
    WHERE j.closed_at < now() - make_interval(days => :days)
      AND {holds.free(Kind.ARCHIVE, "j.id")}
      AND NOT EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id)
      AND (coalesce(a.state, 'kept') = 'kept'
               AND coalesce(a.needed_at < now() - make_interval(days => :days), true)
           OR a.state = 'leaving')
    ORDER BY j.closed_at LIMIT 1
""")
"""The job that has been closed for the longest of those whose rows may leave."""

TAKE = text("""
    INSERT INTO job_archives AS a (job_id, generation) VALUES (:id, :token)
    ON CONFLICT (job_id) DO UPDATE SET generation = excluded.generation
    RETURNING job_id, state, generation, files
""")
"""Fences everybody else off."""

NEED = text("""
    INSERT INTO job_archives (job_id, needed_at) VALUES (:id, now())
    ON CONFLICT (job_id) DO UPDATE SET needed_at = now()
    RETURNING job_id, state, generation, files
""")
"""Keeps the rows of a closed job from leaving for another `retention_days`."""

LOCK = text("""
    SELECT true FROM job_archives WHERE job_id = :id AND generation = :generation FOR UPDATE
""")
"""Locks the row until the end of the transaction, if nobody else has moved on meanwhile."""

LEAVE = text("""
    UPDATE job_archives SET state = 'leaving', files = CAST(:files AS jsonb)
    WHERE job_id = :id AND generation = :generation AND state = 'kept'
      AND coalesce(needed_at < now() - make_interval(days => :days), true)
      AND EXISTS (SELECT FROM jobs j WHERE j.id = job_id
                  AND j.closed_at < now() - make_interval(days => :days))
""")
"""From here the files count, if nobody has needed the job or run it again meanwhile."""

MOVE = text("""
    UPDATE job_archives SET state = :to WHERE job_id = :id
    AND generation = :generation AND state = ANY (CAST(:movable AS text[]))
""")
"""Moves an archive between two states in which the files count."""

ARCHIVED_AT = text("""
    UPDATE jobs SET archived_at = now() WHERE id = :id
""")

STOP_OF_PAGE = {
    "batches": text("""
        SELECT max(seq) + 1 FROM (SELECT seq FROM batches WHERE job_id = :id AND seq >= :first
                                  ORDER BY seq LIMIT :most) AS page
    """),
    "row_errors": text("""
        SELECT max(row_index) + 1 FROM (
            SELECT row_index FROM row_errors WHERE job_id = :id AND row_index >= :first
            ORDER BY row_index LIMIT :most) AS page
    """),
}
STOP_OF_PAGE["attempts"] = STOP_OF_PAGE["batches"]
"""Where a page ends that begins at `first`: a place in the dataset, or a row index for row errors."""

ROWS = {
    "batches": """SELECT * FROM batches WHERE job_id = %(id)s AND seq >= %(first)s
                  AND seq < %(stop)s ORDER BY seq, id""",
    "attempts": """SELECT * FROM attempts WHERE batch_id = ANY (ARRAY(
                       SELECT id FROM batches
                       WHERE job_id = %(id)s AND seq >= %(first)s AND seq < %(stop)s))
                   ORDER BY batch_id, attempt""",
    "row_errors": """SELECT * FROM row_errors WHERE job_id = %(id)s AND row_index >= %(first)s
                     AND row_index < %(stop)s ORDER BY row_index""",
}
"""The rows of a page."""

COUNT = {
    "batches": text("""
        SELECT count(*) FROM batches WHERE job_id = :id AND seq >= :first AND seq < :stop
    """),
    "attempts": text("""
        SELECT count(*) FROM attempts WHERE batch_id = ANY (ARRAY(
            SELECT id FROM batches WHERE job_id = :id AND seq >= :first AND seq < :stop))
    """),
    "row_errors": text("""
        SELECT count(*) FROM row_errors
        WHERE job_id = :id AND row_index >= :first AND row_index < :stop
    """),
}
"""How many rows a page has."""

DELETE = {
    "batches": text("""
        DELETE FROM batches WHERE job_id = :id AND seq >= :first AND seq < :stop
    """),
    "attempts": text("""
        DELETE FROM attempts WHERE batch_id = ANY (ARRAY(
            SELECT id FROM batches WHERE job_id = :id AND seq >= :first AND seq < :stop))
    """),
    "row_errors": text("""
        DELETE FROM row_errors WHERE job_id = :id AND row_index >= :first AND row_index < :stop
    """),
}
"""Removes the rows of a page; the counters of the job stay as they are."""

COLUMNS = text("""
    SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute
    WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
""")
"""Names and types of a table's columns."""

VIEW = text("SELECT pg_get_viewdef('failed_rows'::regclass)")
"""The view over those tables that readers of a closed job use."""

INDEXES = (
    "CREATE INDEX ON pg_temp.batches (job_id, seq)",
    "CREATE INDEX ON pg_temp.batches (id)",
    "CREATE INDEX ON pg_temp.attempts (batch_id, attempt)",
    "CREATE INDEX ON pg_temp.attempts (job_id, ended_at DESC)",
    "CREATE INDEX ON pg_temp.row_errors (job_id, row_index)",
    "CREATE INDEX ON pg_temp.row_errors (batch_id)",
)
"""Indexes for the statements of readers."""


def take(connection: Connection, days: int, who: str) -> Archive | None:
    """A closed job whose rows may leave, taken from other reapers; None when there is none.

    A job leaves once it has been closed, and needed by nobody, for so many days. One whose rows have
    begun to leave is taken up again. Only one reaper at a time may call this.
    """
    found = connection.scalar(DUE, {"days": days})
    if found is None:
        return None
    lock(connection, found)
    hold = holds.take(connection, Kind.ARCHIVE, found, who)
    return None if hold is None else _archive(connection, TAKE, id=found, token=hold.token)


def lock(connection: Connection, job_id: int) -> None:
    """Locks where the rows of a job are, if that was ever written: before its hold, as everywhere."""
    statement = text("SELECT true FROM job_archives WHERE job_id = :id FOR UPDATE")
    connection.execute(statement, {"id": job_id})


def need(connection: Connection, job_id: int) -> Archive:
    """Where the rows of a closed job are, which do not leave within the next `retention_days`.
    BadInput for a job that is being deleted.
    """
    jobs.refuse_deleted(connection, job_id)
    return _archive(connection, NEED, id=job_id)


def hold(connection: Connection, archive: Archive) -> bool:
    """Holds an archive to the end of the transaction, and from reapers for a while after it. False when
    somebody else has moved on with the job: then no row may be moved.
    """
    if connection.scalar(LOCK, _values(archive)) is None:
        return False
    holds.keep_free_of_others(connection, Kind.ARCHIVE, archive.job_id)
    return True


def postpone(connection: Connection, archive: Archive, seconds: float) -> None:
    """No reaper takes the job within so many seconds."""
    holds.postpone(connection, _hold(archive), seconds)


def may_leave(connection: Connection, job_id: int) -> bool:
    """Locks a job; True when it is closed and no reader, retry or finish needs its rows.

    A job whose finish was given up has rows of dead batches that stand in no part. Only
    its batches know these rows, so that job stays.
    """
    end = job_end.open_work(connection, job_id).end
    job = jobs.get(connection, job_id)
    return job is not None and job.closed_at is not None and end is not None


def leave(
    connection: Connection, archive: Archive, files: Sequence[ArchiveFile], days: int
) -> bool:
    """From COMMIT on these files count, and the rows may be deleted. False when the job is not as it
    was when it was taken: then every row stays.
    """
    # Lock the job before its archive, as a retry does.
    if not may_leave(connection, archive.job_id):
        return False
    written = json.dumps([asdict(file) for file in files])
    left = connection.execute(LEAVE, _values(archive, files=written, days=days)).rowcount > 0
    if left:
        connection.execute(ARCHIVED_AT, {"id": archive.job_id})
    return left


def move(connection: Connection, archive: Archive, to: ArchiveState) -> bool:
    """Moves an archive whose files count; False when it is not where it may move from."""
    movable = [state.value for state in ArchiveState if to in ARCHIVE_MOVES[state] or state is to]
    moved = connection.execute(MOVE, _values(archive, to=to, movable=movable)).rowcount > 0
    if moved:
        holds.end(connection, Kind.ARCHIVE, archive.job_id)
    return moved


def stop_of_page(
    connection: Connection, table: str, job_id: int, first: int, most: int
) -> int | None:
    """Where the next page of about `most` rows ends; None when there are no rows from `first` on."""
    values = {"id": job_id, "first": first, "most": most}
    found: int | None = connection.scalar(STOP_OF_PAGE[table], values)
    return found


def columns(connection: Connection, table: str) -> dict[str, str]:
    """The columns of a table, each with the name of its type."""
    found = connection.execute(COLUMNS, {"table": table})
    return {row.name: row.type for row in found}


def rows_between(connection: Connection, table: str, job_id: int, first: int, stop: int) -> bytes:
    """The rows of a page as CSV without a header; times are in UTC."""
    connection.exec_driver_sql("SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'")
    with _cursor(connection) as cursor:
        statement = "COPY (" + ROWS[table] + ") TO STDOUT (FORMAT csv)"
        values = {"id": job_id, "first": first, "stop": stop}
        with cursor.copy(statement, values) as copy:
            return b"".join(copy)


def count_between(connection: Connection, table: str, job_id: int, first: int, stop: int) -> int:
    """How many rows a page has."""
    values = {"id": job_id, "first": first, "stop": stop}
    return int(connection.execute(COUNT[table], values).scalar_one())


def delete_between(connection: Connection, table: str, job_id: int, first: int, stop: int) -> int:
    """Removes the rows of a page; returns how many."""
    values = {"id": job_id, "first": first, "stop": stop}
    return connection.execute(DELETE[table], values).rowcount


def begin_reading(connection: Connection) -> None:
    """Shadow the tables with empty temporary ones until the end of the transaction; call it first in a transaction.
    Lifts the statement time limit. Sets `application_name`, since a long open transaction holds back vacuum.
    """
    one_moment(connection)
    lift_time_limit(connection)
    pause = round(READING_SECONDS * 1000)
    connection.exec_driver_sql(
        f"SET LOCAL idle_in_transaction_session_timeout = {pause}; "
        "SET LOCAL application_name = 'nightshift (archive)'"
    )
    # Taken before the temporary tables exist, so that the text has unqualified names, which then resolve to these.
    view = connection.scalar(VIEW)
    for table in TABLES:
        connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {table} (LIKE {table} INCLUDING DEFAULTS) ON COMMIT DROP"
        )
    connection.exec_driver_sql(f"CREATE TEMPORARY VIEW failed_rows AS {view}")


def load(connection: Connection, table: str, names: Sequence[str], pages: Iterable[bytes]) -> None:
    """Load pages of CSV without a header into the named columns of a temporary table; other columns get their default."""
    into = sql.SQL("COPY pg_temp.{} ({}) FROM STDIN (FORMAT csv)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with _cursor(connection) as cursor, cursor.copy(into) as copy:
        for page in pages:
            copy.write(page)


def only_read(connection: Connection) -> None:
    """Index the loaded rows, and make the transaction read-only."""
    for statement in (*INDEXES, *(f"ANALYZE pg_temp.{table}" for table in TABLES)):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("SET TRANSACTION READ ONLY")


def _archive(connection: Connection, statement: Any, **values: object) -> Archive:
    found = connection.execute(statement, values).mappings().one()
    files = tuple(ArchiveFile(**file) for file in found["files"] or ())
    return Archive(**{**found, "state": ArchiveState(found["state"]), "files": files})


def _hold(archive: Archive) -> Hold:
    """The hold of the reaper that took the job; its token is the fence of the archive."""
    return Hold(Kind.ARCHIVE, str(archive.job_id), archive.generation)


def _values(archive: Archive, **more: object) -> dict[str, object]:
    return {"id": archive.job_id, "generation": archive.generation, **more}


def _cursor(connection: Connection) -> Any:
    driver = connection.connection.driver_connection
    assert driver is not None
    return driver.cursor()
