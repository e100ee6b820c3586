"""Commits of a job's parts to a table of a lake: what one is about to add and to remove, and what became of it.

A commit is open from before the table is written until the ledger knows what became of it, and the parts that it
adds and removes do not change meanwhile. Commits of a job are numbered from 1 on. The table keeps the number of
the last one, so whoever finishes a commit that another process began knows whether the table has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from nightshift.common.errors import BadInput, TableTaken
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs, messages
from nightshift.common.states import JobState

MARK_BITS = 32
"""Bits of the token in a mark. Numbers and tokens have 31 bits, so a mark is a positive bigint."""

LAST_SEQ = 2**62
"""Behind the last batch of any job."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Root batches whose parts are committed together: those of a generation, or all of a job."""

    first_seq: int
    stop_seq: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """A part on its way into a table, or out of it: its name, its size in bytes, how many rows it has, and how
    many of them have an error.
    """

    name: str
    bytes: int
    rows: int
    rows_failed: int


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit by its number within the job. `base` is the version that the table had when the commit began, None
    without a table; `version` the one that has the commit, where the ledger knows it.
    """

    job_id: int
    number: int
    token: int
    scope: Scope
    base: str | None
    state: str
    version: str | None
    reason: str | None

    @property
    def mark(self) -> int:
        """What the table keeps of the commit: its number, and a token, since a ledger that was restored from a dump
        numbers again.
        """
        return self.number << MARK_BITS | self.token

    @property
    def fence(self) -> int:
        """What the table keeps of the commit where the commit is refused. No commit has the token 0."""
        return self.number << MARK_BITS


SELECT = """SELECT job_id, number, token, first_seq, stop_seq, base, state, version, reason FROM table_commits"""

IN_TABLE = """
    SELECT f.part_name FROM table_files f
    JOIN table_commits a ON a.job_id = f.job_id AND a.number = f.added AND a.state = 'done'
    LEFT JOIN table_commits r ON r.job_id = f.job_id AND r.number = f.removed AND r.state = 'done'
    WHERE f.job_id = :id AND r.number IS NULL
"""
"""Parts that the table has, as the ledger knows it."""

IN_SCOPE = f"{IN_TABLE} AND f.seq >= :first AND f.seq < :stop"

LIVE = """
    SELECT b.part_name FROM batches b
    WHERE b.job_id = :id AND b.part_name IS NOT NULL AND b.state <> 'split'
"""
"""The parts of a job that count."""

LIVE_IN_SCOPE = f"{LIVE} AND b.seq >= :first AND b.seq < :stop"

UNCOMMITTED = """
    g.finished_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM table_commits c WHERE c.job_id = g.job_id AND c.first_seq = g.first_seq
        AND (c.state = 'done' AND c.begun_at >= g.finished_at
             OR c.state = 'refused' AND c.ended_at > now() - interval '10 minutes'))
"""
"""A generation was finished since its last commit; one that was refused rests for a while."""

SCOPES = text(f"""
    SELECT first_seq, stop_seq FROM generations g
    WHERE job_id = :id AND (NOT :finished OR {UNCOMMITTED})
    UNION ALL
    SELECT 0, :last WHERE NOT :finished AND NOT EXISTS (SELECT FROM generations WHERE job_id = :id)
    ORDER BY 1
""")
"""What is committed together: generations, of which those that are finished may be wanted alone, or the whole job."""

NOTHING_OPEN = """
    NOT EXISTS (SELECT FROM batches WHERE job_id = :id AND seq >= :first AND seq < :stop
                AND state IN ('pending', 'queued', 'leased', 'dead'))
"""

ALL_DONE = text(f"""
    SELECT {NOTHING_OPEN} AND NOT EXISTS (SELECT FROM job_watches WHERE job_id = :id)
""")
"""Whether a job has no batch that is not done, and gets none."""

DIFFERS = text(f"""
    SELECT {NOTHING_OPEN}
       AND (EXISTS ({LIVE_IN_SCOPE} EXCEPT {IN_SCOPE}) OR EXISTS ({IN_SCOPE} EXCEPT {LIVE_IN_SCOPE}))
""")
"""Whether the batches of a scope are all done, and its parts are not those that the table has."""

ADD_FILES = text(f"""
    INSERT INTO table_files (job_id, part_name, seq, bytes, rows, rows_failed, added)
    SELECT b.job_id, b.part_name, b.seq, b.part_bytes, b.row_count, b.rows_failed, :number
    FROM batches b
    WHERE b.job_id = :id AND b.seq >= :first AND b.seq < :stop AND b.part_name IN (
        {LIVE_IN_SCOPE} EXCEPT {IN_SCOPE})
      AND b.state <> 'split'
""")

REMOVE_FILES = text(f"""
    UPDATE table_files SET removed = :number
    WHERE job_id = :id AND part_name IN (
        {IN_SCOPE} EXCEPT {LIVE_IN_SCOPE})
""")


def note(connection: Connection, job_id: int, base: str | None) -> None:
    """Notes the version that the table has at submit, or when a person lets a refused job go on."""
    statement = text("""
        INSERT INTO job_tables (job_id, base) VALUES (:id, :base)
        ON CONFLICT (job_id) DO UPDATE SET base = excluded.base
    """)
    connection.execute(statement, {"id": job_id, "base": base})


def noted_base(connection: Connection, job_id: int) -> str | None:
    """The version that the table had then."""
    found: str | None = connection.scalar(
        text("SELECT base FROM job_tables WHERE job_id = :id"), {"id": job_id}
    )
    return found


def last(connection: Connection, job_id: int) -> TableCommit | None:
    """The last commit of a job that was begun."""
    statement = text(f"{SELECT} WHERE job_id = :id ORDER BY number DESC LIMIT 1")
    return _commit(connection.execute(statement, {"id": job_id}).one_or_none())


def last_done(connection: Connection, job_id: int) -> TableCommit | None:
    """The last commit of a job that the table has."""
    statement = text(f"{SELECT} WHERE job_id = :id AND state = 'done' ORDER BY number DESC LIMIT 1")
    return _commit(connection.execute(statement, {"id": job_id}).one_or_none())


def first_made(connection: Connection, job_id: int) -> int:
    """The number of the first commit of a job that was not refused."""
    statement = text("""
        SELECT coalesce(min(number), 0) FROM table_commits WHERE job_id = :id AND state <> 'refused'
    """)
    return int(connection.scalar(statement, {"id": job_id}) or 0)


def state_of(connection: Connection, commit: TableCommit) -> str:
    """What is known of a commit now; `refused` where it is gone with its job."""
    statement = text("SELECT state FROM table_commits WHERE job_id = :id AND number = :number")
    found = connection.scalar(statement, {"id": commit.job_id, "number": commit.number})
    return "refused" if found is None else str(found)


def _commit(row: Any) -> TableCommit | None:
    if row is None:
        return None
    job_id, number, token, first, stop, *rest = row
    return TableCommit(job_id, number, token, Scope(first, stop), *rest)


def due(connection: Connection, job_id: int, *, finished: bool = False) -> list[Scope]:
    """Scopes of a job whose batches are all done and whose parts are not those that the table has, in order; with
    `finished` generations alone whose files are written.
    """
    given = {"id": job_id, "last": LAST_SEQ, "finished": finished}
    scopes = [Scope(*row) for row in connection.execute(SCOPES, given)]
    return [each for each in scopes if connection.scalar(DIFFERS, _given(job_id, each))]


def _given(job_id: int, scope: Scope) -> dict[str, object]:
    return {"id": job_id, "first": scope.first_seq, "stop": scope.stop_seq}


def begin(
    connection: Connection, job_id: int, scope: Scope, base: str | None
) -> TableCommit | None:
    """Opens a commit of the parts of a scope, or finds the one that is open; None where the job was cancelled or
    failed, where rows of the scope run again, or where the table has its parts by now.

    The files of a commit that was refused are forgotten: the caller has asked the table for its number.
    """
    state = jobs.lock(connection, job_id)
    found = last(connection, job_id)
    if found is not None and found.state == "open":
        return found
    given = _given(job_id, scope)
    if state not in (JobState.RUNNING, JobState.PAUSED):
        return None
    if not connection.scalar(DIFFERS, given):
        return None
    _forget_refused(connection, job_id)
    number = 1 if found is None else found.number + 1
    statement = text("""
        INSERT INTO table_commits (job_id, number, first_seq, stop_seq, base)
        VALUES (:id, :number, :first, :stop, :base)
    """)
    connection.execute(statement, {**given, "number": number, "base": base})
    connection.execute(ADD_FILES, {**given, "number": number})
    connection.execute(REMOVE_FILES, {**given, "number": number})
    return last(connection, job_id)


def _forget_refused(connection: Connection, job_id: int) -> None:
    refused = """(SELECT number FROM table_commits WHERE job_id = :id AND state = 'refused')"""
    for statement in (
        f"UPDATE table_files SET removed = NULL WHERE job_id = :id AND removed IN {refused}",
        f"DELETE FROM table_files WHERE job_id = :id AND added IN {refused}",
    ):
        connection.execute(text(statement), {"id": job_id})


def files(connection: Connection, commit: TableCommit) -> tuple[list[TableFile], list[TableFile]]:
    """The parts that a commit adds, in dataset order, and those that it removes."""
    found = []
    for column in ("added", "removed"):
        statement = text(f"""
            SELECT part_name, bytes, rows, rows_failed FROM table_files
            WHERE job_id = :id AND {column} = :number ORDER BY seq, part_name
        """)
        given = {"id": commit.job_id, "number": commit.number}
        found.append([TableFile(*row) for row in connection.execute(statement, given)])
    return found[0], found[1]


def end(
    connection: Connection,
    commit: TableCommit,
    *,
    version: str | None = None,
    reason: str | BaseException | None = None,
) -> None:
    """Notes that the table has a commit, as its `version`; or for which `reason` it was refused. A commit that was
    refused may turn out to be in the table; one that the table has is never refused.
    """
    state = "done" if reason is None else "refused"
    statement = text("""
        UPDATE table_commits
        SET state = :state, version = :version, reason = :reason, ended_at = now()
        WHERE job_id = :id AND number = :number
          AND (state = 'open' OR state = 'refused' AND :state = 'done')
    """)
    kept = None if reason is None else messages.stored(connection, commit.job_id, reason)
    given = {"state": state, "version": version, "reason": kept}
    jobs.lock(connection, commit.job_id)
    connection.execute(statement, {**given, "id": commit.job_id, "number": commit.number})


def refuse_under_way(connection: Connection, job_id: int) -> None:
    """TableTaken while a commit of the job is open. None begins while the caller holds the row of the job."""
    found = last(connection, job_id)
    if found is not None and found.state == "open":
        raise TableTaken(
            f"the rows of job {job_id} are on their way into its table, which a reaper finishes: try again "
            "in a moment"
        )


def refuse_cancel(connection: Connection, job_id: int) -> None:
    """TableTaken while a commit of the job is open, BadInput where the table has all that the job will ever have:
    a cancelled job has nothing in its table. The caller holds the row of the job.
    """
    refuse_under_way(connection, job_id)
    if jobs.lock(connection, job_id).over:
        return
    given = {"id": job_id, "first": 0, "stop": LAST_SEQ}
    is_done = last_done(connection, job_id) is not None and connection.scalar(ALL_DONE, given)
    if is_done and not due(connection, job_id):
        raise BadInput(f"the rows of job {job_id} are in its table: the job closes in a moment")


def in_table(connection: Connection, job_id: int) -> set[str]:
    """The parts that the table has, as the ledger knows it."""
    return set(connection.scalars(text(IN_TABLE), {"id": job_id}))


def run_again(connection: Connection, job_id: int, lost: Sequence[str] = ()) -> list[TableFile]:
    """The parts that the table has, as the ledger knows it, and whose rows run again: those with an error, or the
    `lost` ones.
    """
    statement = text(f"""
        SELECT part_name, bytes, rows, rows_failed FROM table_files
        WHERE job_id = :id AND part_name IN ({IN_TABLE})
          AND CASE WHEN :some THEN part_name = ANY(CAST(:lost AS text[])) ELSE rows_failed > 0 END
        ORDER BY seq, part_name
    """)
    given = {"id": job_id, "some": bool(lost), "lost": list(lost)}
    return [TableFile(*row) for row in connection.execute(statement, given)]


def files_in_table(connection: Connection, job_id: int) -> list[TableFile]:
    """The parts that the table has, as the ledger knows it."""
    statement = text(f"""
        SELECT part_name, bytes, rows, rows_failed FROM table_files
        WHERE job_id = :id AND part_name IN ({IN_TABLE}) ORDER BY seq, part_name
    """)
    return [TableFile(*row) for row in connection.execute(statement, {"id": job_id})]


def kept(connection: Connection, job_id: int) -> set[str]:
    """The parts that must stay: those that the table has or is about to have, and those that were replaced and
    whose days are not over. What may go is said by `expired`, and removed by `forget`.
    """
    statement = text("SELECT part_name FROM table_files WHERE job_id = :id")
    return set(connection.scalars(statement, {"id": job_id}))


def open_jobs(connection: Connection) -> list[int]:
    """Jobs that are not over and have generations that are finished, whose parts a table lacks."""
    statement = text(f"""
        SELECT j.id FROM jobs j JOIN job_tables t ON t.job_id = j.id
        WHERE j.state IN ('running', 'paused')
          AND (EXISTS (SELECT FROM generations g WHERE g.job_id = j.id AND {UNCOMMITTED})
               OR EXISTS (SELECT FROM table_commits c WHERE c.job_id = j.id AND c.state = 'open'))
        ORDER BY t.job_id
    """)
    return list(connection.scalars(statement))


def replaced(connection: Connection, job_id: int) -> list[TableFile]:
    """The parts that a commit has taken out of the table."""
    statement = text("""
        SELECT f.part_name, f.bytes, f.rows, f.rows_failed FROM table_files f
        JOIN table_commits r ON r.job_id = f.job_id AND r.number = f.removed AND r.state = 'done'
        WHERE f.job_id = :id
    """)
    return [TableFile(*row) for row in connection.execute(statement, {"id": job_id})]


def expired(connection: Connection) -> list[tuple[int, list[str]]]:
    """By job, the parts that were replaced so long ago that they may go."""
    statement = text("""
        SELECT f.job_id, array_agg(f.part_name ORDER BY f.part_name)
        FROM table_files f JOIN jobs j ON j.id = f.job_id
        JOIN table_commits r ON r.job_id = f.job_id AND r.number = f.removed AND r.state = 'done'
        WHERE r.ended_at < now() - make_interval(days => CAST(j.spec #>> '{output,table,keep_days}' AS integer))
        GROUP BY f.job_id ORDER BY f.job_id
    """)
    return [(job_id, list(names)) for job_id, names in connection.execute(statement)]


def forget(connection: Connection, job_id: int, names: Sequence[str]) -> None:
    """The parts are gone."""
    statement = text(
        "DELETE FROM table_files WHERE job_id = :id AND part_name = ANY(CAST(:names AS text[]))"
    )
    connection.execute(statement, {"id": job_id, "names": list(names)})


@dataclass(frozen=True, slots=True)
class TableState:
    """What is known of the table of a job: how many parts and rows of the job it has (of a merge, rows with an
    answer), the version of the last commit that it has, the last commit that was begun and its moment.
    """

    commit: TableCommit | None
    version: str | None
    files: int
    rows: int
    at: datetime | None


def status(connection: Connection, job_id: int) -> TableState | None:
    """The table of a job; None for a job without one."""
    if not connection.scalar(
        text("SELECT EXISTS (SELECT FROM job_tables WHERE job_id = :id)"), {"id": job_id}
    ):
        return None
    statement = text(f"""
        SELECT count(*) FILTER (WHERE kept > 0) AS files, coalesce(sum(kept), 0)::bigint AS rows
        FROM (
            SELECT f.rows - CASE j.spec #>> '{{output,table,mode}}' WHEN 'merge' THEN f.rows_failed ELSE 0 END AS kept
            FROM table_files f JOIN jobs j ON j.id = f.job_id
            WHERE f.job_id = :id AND f.part_name IN ({IN_TABLE})
        ) AS found
    """)
    found = connection.execute(statement, {"id": job_id}).one()
    at = connection.scalar(
        text("SELECT max(coalesce(ended_at, begun_at)) FROM table_commits WHERE job_id = :id"),
        {"id": job_id},
    )
    done = last_done(connection, job_id)
    version = None if done is None else done.version
    return TableState(last(connection, job_id), version, found.files, found.rows, at)
