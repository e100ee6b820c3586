"""Worker children and their engines: register, ready, heartbeat, end."""

from dataclasses import asdict, dataclass

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import engine_versions, loads
from nightshift.common.ledger.fleet import slots
from nightshift.common.text import kept_message


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


def loading_hosts(connection: Connection, job_id: int) -> list[str]:
    """The machines whose children load the engine of a job."""
    statement = text("""
        SELECT DISTINCT w.host FROM workers w JOIN jobs j USING (pool, engine_key)
        WHERE j.id = :id AND w.state = 'loading' ORDER BY w.host LIMIT 5
    """)
    return list(connection.scalars(statement, {"id": job_id}))


def held_revision(connection: Connection, pool: str, engine_key: str) -> str | None:
    """The revision that the first load of this engine resolved to, if there was one."""
    found: str | None = connection.scalar(
        text("SELECT revision FROM engines WHERE pool = :pool AND engine_key = :engine_key"),
        {"pool": pool, "engine_key": engine_key},
    )
    return found


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What a child has loaded, and how many rows it holds at once; `code` has the digests of a function's
    files.
    """

    engine: str
    engine_version: str
    window_rows: int
    revision: str | None = None
    cache_tokens: int | None = None
    code_version: str | None = None
    code: dict[str, str] | None = None


def ready(connection: Connection, child: Child, loaded: LoadedEngine) -> str | None:
    """The engine is loaded: earlier failed loads no longer count; returns the revision to hold.

    The first load of a model stores its resolved revision. A load of another revision changes
    nothing here: the child cannot serve, and the caller reports a failed load.
    """
    given = {**asdict(child), **asdict(loaded)}
    held: str | None = connection.scalar(PIN_REVISION, given)
    if held != loaded.revision:
        return held
    given["version_id"] = engine_versions.number(
        connection, loaded.engine, loaded.engine_version, loaded.revision, loaded.code or None
    )
    for statement in LOADED:
        connection.execute(statement, given)
    loads.accept(connection, child.pool, child.engine_key, child.id)
    return held


PIN_REVISION = text("""
    INSERT INTO engines AS e (pool, engine_key, revision) VALUES (:pool, :engine_key, :revision)
    ON CONFLICT (pool, engine_key) DO UPDATE SET revision = coalesce(e.revision, excluded.revision)
    RETURNING revision
""")
"""Stores the revision of the first load; returns the one that loads are held to."""

LOADED = (
    text("""
        UPDATE engines
        SET load_failures = 0, last_error = NULL, engine_version = :engine_version, loaded_at = now(),
            window_rows = :window_rows, cache_tokens = :cache_tokens,
            load_seconds = (SELECT extract(epoch FROM now() - started_at) FROM workers
                            WHERE id = :id)
        WHERE pool = :pool AND engine_key = :engine_key
    """),
    text("""
        UPDATE workers
        SET state = 'ready', engine = :engine, engine_version = :engine_version,
            code_version = :code_version, version_id = :version_id,
            window_rows = :window_rows, ready_at = now(),
            seen_at = now()
        WHERE id = :id
    """),
)
"""Notes the load of an engine and the child that has it."""


def beat(connection: Connection, worker_id: str, state: str) -> None:
    """Notes that the child lives, also after a silence; `state` is loading, ready or draining."""
    statement = text("""
        UPDATE workers SET seen_at = now(), state = :state, ended_at = NULL, error = NULL
        WHERE id = :id
    """)
    connection.execute(statement, {"id": worker_id, "state": state})


def end(connection: Connection, worker_id: str, *, died: str | None) -> int:
    """The child is gone: its leases are free at once. `died` says why, and charges `losses`;
    None (drained, replaced) charges nothing. Returns how many leases it still held.
    """
    died = None if died is None else kept_message(died)
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
    slots.leave(connection, supervisor)
    return sum(end(connection, child, died=None) for child in children)


def end_silent(connection: Connection, silent_seconds: float) -> None:
    """Marks children ended that were not seen for `silent_seconds`, a lease: what they held ran out
    in that time. One that was only frozen or cut off is `ready` again with its next heartbeat.

    A loading child may be silent for as long as its supervisor reports it: a library may keep
    Python's lock.
    """
    statement = text("""
        UPDATE workers SET state = 'ended', ended_at = now(),
               error = coalesce(error, 'not seen any more')
        WHERE state <> 'ended' AND seen_at < now() - make_interval(secs => :silent)
          AND NOT (state = 'loading' AND EXISTS (
              SELECT FROM slots s WHERE s.supervisor = workers.supervisor
              AND s.worker_id = workers.id AND s.seen_at >= now() - make_interval(secs => :silent)))
    """)
    connection.execute(statement, {"silent": silent_seconds})


def child_state(connection: Connection, worker_id: str) -> str | None:
    """The state of a child; None when it never registered."""
    statement = text("SELECT state FROM workers WHERE id = :id")
    found: str | None = connection.scalar(statement, {"id": worker_id})
    return found


def status(connection: Connection) -> list[RowMapping]:
    """Rows of the view worker_status."""
    found = connection.execute(text("SELECT * FROM worker_status ORDER BY pool, host, slot"))
    return list(found.mappings())
