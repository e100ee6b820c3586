"""Archives: the batches, attempts, row errors and the picture of a closed job leave the ledger for files beside the
output, and come back from there.

The row of the job in `job_archives` says where they are. Whoever moves rows holds that row in each
transaction, so that no two processes move the rows of a job in different directions.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql
from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.states import ARCHIVE_MOVES, ArchiveState

ARCHIVE_LOCK = 0x6E69676802
"""Advisory lock of the choice of a job to archive: one reaper at a time, for one short transaction."""

TABLES = ("job_pictures", "row_errors", "attempts", "batches")
"""The tables in the order in which their rows leave. Attempts are found by their batches, so batches come back
first; an archive of an older release has no pictures."""

LIKELY_RETURN = "1 day"
"""If no process has continued a return for this time, the return is given up: rows that came back leave again."""


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
           OR a.state = 'leaving'
           OR a.state = 'returning' AND a.needed_at < now() - CAST(:likely_return AS interval))
    ORDER BY j.closed_at LIMIT 1
""")
"""The job that has been closed for the longest of those whose rows may leave."""

TAKE = text("""
    INSERT INTO job_archives AS a (job_id, generation) VALUES (:id, :token)
    ON CONFLICT (job_id) DO UPDATE
    SET generation = excluded.generation,
        state = CASE a.state WHEN 'returning' THEN 'leaving' ELSE a.state END
    RETURNING job_id, state, generation, files
""")
"""Fences everybody else off; a return that was given up is turned back."""

NEED = text("""
    INSERT INTO job_archives (job_id, needed_at) VALUES (:id, now())
    ON CONFLICT (job_id) DO UPDATE SET needed_at = now()
    RETURNING job_id, state, generation, files
""")
"""Keeps the rows of a closed job from leaving for another `retention_days`."""

LOCK = text("""
    SELECT true FROM job_archives WHERE job_id = :id AND generation = :generation AND state = :state
    FOR UPDATE
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

KEEP = text("""
    UPDATE job_archives SET state = 'kept', files = NULL, needed_at = now()
    WHERE job_id = :id AND generation = :generation AND state = 'returning'
""")
"""From here the rows in Postgres count."""

ARCHIVED_AT = text("""
    UPDATE jobs SET archived_at = CASE WHEN :is_archived THEN now() END WHERE id = :id
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
    "job_pictures": text("""
        SELECT max(stop) FROM (SELECT 1 AS stop FROM job_pictures WHERE job_id = :id AND :first < 1
                               LIMIT :most) AS page
    """),
}
STOP_OF_PAGE["attempts"] = STOP_OF_PAGE["batches"]
"""Where a page ends that begins at `first`: a place in the dataset, or a row index for row errors. The picture of a
job is one row, at place 0."""

ROWS = {
    "batches": """SELECT * FROM batches WHERE job_id = %(id)s AND seq >= %(first)s
                  AND seq < %(stop)s ORDER BY seq, id""",
    "attempts": """SELECT * FROM attempts WHERE batch_id = ANY (ARRAY(
                       SELECT id FROM batches
                       WHERE job_id = %(id)s AND seq >= %(first)s AND seq < %(stop)s))
                   ORDER BY batch_id, attempt""",
    "row_errors": """SELECT * FROM row_errors WHERE job_id = %(id)s AND row_index >= %(first)s
                     AND row_index < %(stop)s ORDER BY row_index""",
    "job_pictures": """SELECT * FROM job_pictures
                       WHERE job_id = %(id)s AND %(first)s < 1 AND %(stop)s > 0""",
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
    "job_pictures": text("""
        SELECT count(*) FROM job_pictures WHERE job_id = :id AND :first < 1 AND :stop > 0
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
    "job_pictures": text("""
        DELETE FROM job_pictures WHERE job_id = :id AND :first < 1 AND :stop > 0
    """),
}
"""Removes the rows of a page; the counters of the job stay as they are."""

COLUMNS = text("""
    SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute
    WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
""")
"""Names and types of a table's columns."""

ADD = {
    table: sql.SQL(
        "INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM brought_back ON CONFLICT DO NOTHING"
    ).format(table=sql.Identifier(table))
    for table in TABLES
}
"""Adds the rows that are not there yet."""


def take(connection: Connection, days: int, who: str) -> Archive | None:
    """A closed job whose rows may leave, taken from other reapers; None when there is none.

    A job leaves once it has been closed, and needed by nobody, for so many days. One whose rows have
    begun to leave is taken up again. Only one reaper at a time may call this.
    """
    found = connection.scalar(DUE, {"days": days, "likely_return": LIKELY_RETURN})
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
    if connection.scalar(LOCK, _values(archive, state=archive.state)) is None:
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
        connection.execute(ARCHIVED_AT, {"id": archive.job_id, "is_archived": True})
    return left


def move(connection: Connection, archive: Archive, to: ArchiveState) -> bool:
    """Moves an archive whose files count; False when it is not where it may move from."""
    movable = [state.value for state in ArchiveState if to in ARCHIVE_MOVES[state] or state is to]
    moved = connection.execute(MOVE, _values(archive, to=to, movable=movable)).rowcount > 0
    if moved:
        holds.end(connection, Kind.ARCHIVE, archive.job_id)
    return moved


def keep(connection: Connection, archive: Archive) -> bool:
    """From COMMIT on the rows in Postgres count again; False when the rows did not all return."""
    kept = connection.execute(KEEP, _values(archive)).rowcount > 0
    if kept:
        connection.execute(ARCHIVED_AT, {"id": archive.job_id, "is_archived": False})
        holds.end(connection, Kind.ARCHIVE, archive.job_id)
    return kept


def refuse_away(connection: Connection, job_id: int) -> None:
    """BadInput where the rows of a job are not all in Postgres, or are being deleted."""
    jobs.refuse_deleted(connection, job_id)
    if is_away(connection, job_id):
        raise BadInput(
            f"the batches of job {job_id} are in its archive: `nightshift verify {job_id}` brings "
            "them back"
        )


def is_away(connection: Connection, job_id: int) -> bool:
    """Whether the rows of a job are not all in Postgres."""
    statement = text("SELECT true FROM job_archives WHERE job_id = :id AND state <> 'kept'")
    return connection.scalar(statement, {"id": job_id}) is not None


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


def add(connection: Connection, table: str, names: Sequence[str], rows: Iterable[Any]) -> None:
    """Adds rows that came back, unless they are there; columns without a name get their default."""
    connection.exec_driver_sql("SET LOCAL nightshift.bringing_back = 'on'")
    target = sql.Identifier(table)
    # Defaults for columns that a later migration has added.
    like = sql.SQL("CREATE TEMP TABLE brought_back (LIKE {} INCLUDING DEFAULTS) ON COMMIT DROP")
    into = sql.SQL("COPY brought_back ({}) FROM STDIN")
    with _cursor(connection) as cursor:
        cursor.execute(like.format(target))
        with cursor.copy(into.format(sql.SQL(", ").join(map(sql.Identifier, names)))) as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute(ADD[table])


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
