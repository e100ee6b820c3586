"""Worker children and their engines: register, heartbeat, end, failed loads."""

from dataclasses import asdict, dataclass

from sqlalchemy import RowMapping, text

from nightshift.common.ledger import fleet, jobs
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.connection import Connection

MAX_LOAD_FAILURES = 3
"""Failed loads in a row, with no living child that has the engine, that fail its jobs."""


@dataclass(frozen=True, slots=True)
class Child:
    """One boot of a worker child; the id is never used again."""

    id: str
    supervisor: str
    pool: str
    slot: int
    host: str
    pid: int
    engine_key: str


def register(connection: Connection, child: Child) -> None:
    """A child that begins to load its engine."""
    statement = text("""
        INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, state)
        VALUES (:id, :supervisor, :pool, :slot, :host, :pid, :engine_key, 'loading')
    """)
    connection.execute(statement, asdict(child))


def held_revision(connection: Connection, pool: str, engine_key: str) -> str | None:
    """The revision that the first load of this engine resolved to, if there was one."""
    found: str | None = connection.scalar(
        text("SELECT revision FROM engines WHERE pool = :pool AND engine_key = :engine_key"),
        {"pool": pool, "engine_key": engine_key},
    )
    return found


def ready(
    connection: Connection,
    child: Child,
    *,
    engine: str,
    engine_version: str,
    revision: str | None,
    window_rows: int,
    code_version: str | None = None,
) -> str | None:
    """The engine is loaded: its failed loads no longer count; returns the revision to hold.

    The first load of a model stores its resolved revision; later loads get that one back.
    """
    statement = text("""
        WITH loaded AS (
            UPDATE workers SET state = 'ready', engine = :engine, engine_version = :version,
                   code_version = :code_version, window_rows = :window_rows, ready_at = now(),
                   seen_at = now()
            WHERE id = :id
        )
        INSERT INTO engines (pool, engine_key, engine_version, revision, loaded_at, window_rows,
                             load_seconds)
        VALUES (:pool, :engine_key, :version, :revision, now(), :window_rows,
                (SELECT extract(epoch FROM now() - started_at) FROM workers WHERE id = :id))
        ON CONFLICT (pool, engine_key) DO UPDATE
        SET load_failures = 0, last_error = NULL, engine_version = excluded.engine_version,
            revision = coalesce(engines.revision, excluded.revision), loaded_at = now(),
            window_rows = excluded.window_rows, load_seconds = excluded.load_seconds
        RETURNING revision
    """)
    loaded = {
        **asdict(child),
        "engine": engine,
        "version": engine_version,
        "code_version": code_version,
        "window_rows": window_rows,
        "revision": revision,
    }
    held: str | None = connection.scalar(statement, loaded)
    fleet.accept(connection, child.pool, child.engine_key, child.supervisor)
    return held


def beat(connection: Connection, worker_id: str, state: str, *, busy: bool) -> None:
    """Notes that the child lives, also after a silence; `state` is loading, ready or draining."""
    statement = text("""
        UPDATE workers SET seen_at = now(), state = :state, ended_at = NULL, error = NULL,
               busy_at = CASE WHEN :busy THEN now() ELSE busy_at END
        WHERE id = :id
    """)
    connection.execute(statement, {"id": worker_id, "state": state, "busy": busy})


def end(connection: Connection, worker_id: str, *, died: str | None) -> int:
    """The child is gone: its leases are free at once. `died` says why, and charges `losses`;
    None (drained, replaced) charges nothing. Returns how many leases it still held.
    """
    statement = text("""
        UPDATE workers SET state = 'ended', ended_at = now(), error = coalesce(error, :error)
        WHERE id = :id AND state <> 'ended'
    """)
    connection.execute(statement, {"id": worker_id, "error": died})
    if died is None:
        return leasing.release_owner(connection, worker_id)
    return leasing.lose_owner(connection, worker_id, died)


def end_supervisor(connection: Connection, supervisor: str) -> int:
    """Ends every child of a supervisor that is known to be dead, charging nothing; returns how
    many leases became free.
    """
    statement = text("""
        SELECT id FROM workers WHERE supervisor = :supervisor AND state <> 'ended' ORDER BY id
    """)
    children = connection.scalars(statement, {"supervisor": supervisor}).all()
    fleet.leave(connection, supervisor)
    return sum(end(connection, child, died=None) for child in children)


def end_silent(connection: Connection, silent_seconds: float) -> None:
    """Marks children ended that were not seen for `silent_seconds`, a lease: what they held ran out
    in that time. One that was only frozen or cut off is `ready` again with its next heartbeat.
    """
    statement = text("""
        UPDATE workers SET state = 'ended', ended_at = now(),
               error = coalesce(error, 'not seen any more')
        WHERE state <> 'ended' AND seen_at < now() - make_interval(secs => :silent)
    """)
    connection.execute(statement, {"silent": silent_seconds})


def child_state(connection: Connection, worker_id: str) -> str | None:
    """The state of a child; None when it never registered."""
    statement = text("SELECT state FROM workers WHERE id = :id")
    found: str | None = connection.scalar(statement, {"id": worker_id})
    return found


def load_failed(
    connection: Connection, pool: str, engine_key: str, error: str, backoff_seconds: float
) -> int:
    """Counts a failed load and sets when the next may be tried (backoff doubles, 60 s at most).

    Children that started together and failed together count as one failure.
    After MAX_LOAD_FAILURES in a row without one success, and with no living child that has the
    engine, the jobs that need it fail with `error`. Returns the failures so far.
    """
    statement = text("""
        INSERT INTO engines (pool, engine_key, load_failures, last_error, retry_at)
        VALUES (:pool, :engine_key, 1, :error, now() + make_interval(secs => :backoff))
        ON CONFLICT (pool, engine_key) DO UPDATE
        SET load_failures = engines.load_failures + (engines.retry_at <= now())::int,
            last_error = excluded.last_error,
            retry_at = CASE WHEN engines.retry_at <= now() THEN now() + make_interval(
                secs => least(60, :backoff * power(2, least(engines.load_failures, 10))))
                ELSE engines.retry_at END
        RETURNING load_failures
    """)
    engine = {"pool": pool, "engine_key": engine_key}
    failures: int = connection.execute(
        statement, {**engine, "error": error, "backoff": backoff_seconds}
    ).scalar_one()
    if failures >= MAX_LOAD_FAILURES and not _has_engine(connection, pool, engine_key):
        of_engine = text("""
            SELECT id FROM jobs WHERE pool = :pool AND engine_key = :engine_key
            AND state = 'running' ORDER BY id
        """)
        for job_id in connection.scalars(of_engine, engine).all():
            jobs.fail(connection, job_id, f"the engine could not be loaded: {error}")
    return failures


def lock_loads(connection: Connection, job_id: int) -> None:
    """Takes the row of a job's engine, which comes before the rows of jobs: `load_failed` holds it
    when it fails the jobs of the engine.
    """
    statement = text("""
        SELECT FROM engines e JOIN jobs j USING (pool, engine_key)
        WHERE j.id = :job_id FOR UPDATE OF e
    """)
    connection.execute(statement, {"job_id": job_id})


def forgive_loads(connection: Connection, pool: str, engine_key: str) -> None:
    """Lets the engine of a new or reopened job be loaded again at once, with no failure counted."""
    statement = text("""
        UPDATE engines SET load_failures = 0, retry_at = now()
        WHERE pool = :pool AND engine_key = :engine_key
    """)
    connection.execute(statement, {"pool": pool, "engine_key": engine_key})
    fleet.accept(connection, pool, engine_key, None)


def status(connection: Connection) -> list[RowMapping]:
    """Rows of the view worker_status."""
    found = connection.execute(text("SELECT * FROM worker_status ORDER BY pool, host, slot"))
    return list(found.mappings())


def _has_engine(connection: Connection, pool: str, engine_key: str) -> bool:
    statement = text("""
        SELECT EXISTS (SELECT FROM workers WHERE pool = :pool AND engine_key = :engine_key
                       AND state IN ('ready', 'draining')
                       AND seen_at > now() - interval '1 minute')
    """)
    return bool(connection.scalar(statement, {"pool": pool, "engine_key": engine_key}))
