"""Failed loads of engines: which machine is set aside for which engine, and when the jobs fail.

A machine is set aside for a while that doubles with each failed load. What the failures mean for the
jobs is decided by `load_errors.fails_jobs`.
"""

from dataclasses import asdict, dataclass

from sqlalchemy import RowMapping, text

from nightshift.common import public_text
from nightshift.common.allocation.load_errors import Case, Concern, FailedLoad, fails_jobs
from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet.slots import Machine
from nightshift.common.ledger.jobs import jobs
from nightshift.common.text import counted, kept_message, plural

LONGEST_PAUSE_SECONDS = 600.0
"""Longest time for which a machine is set aside: a load of ten minutes that fails each time then
takes half of a slot."""


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """How an operator wants failed loads to be treated.

    `backoff_seconds` is the first pause of a machine, `alive_seconds` how long a silent machine
    counts as living. `one_machine` says that no other machine will come; a pool in which another lives is
    treated as a fleet all the same.
    """

    backoff_seconds: float
    alive_seconds: float
    one_machine: bool = False


def failed(
    connection: Connection,
    machine: Machine,
    engine_key: str,
    case: Case,
    error: str | NightshiftError,
    policy: LoadPolicy,
) -> bool:
    """Sets the machine aside for the engine; True when the jobs that need the engine fail now."""
    whole = kept_message(str(error))
    public = public_text.shown(public_text.marked(error))
    _count(connection, machine.pool, engine_key, whole)
    _set_aside(
        connection, machine, engine_key, case, whole, kept_message(public), policy.backoff_seconds
    )
    over = fails_jobs(
        *_known(connection, machine, engine_key, policy.alive_seconds),
        in_use=_in_use(connection, machine.pool, engine_key),
        load_seconds=_load_seconds(connection, machine.pool, engine_key),
        one_machine=policy.one_machine
        and not _others_live(connection, machine, policy.alive_seconds),
    )
    if over:
        of_engine = text("""
            SELECT id FROM jobs WHERE pool = :pool AND engine_key = :engine_key
            AND state = 'running' ORDER BY id
        """)
        engine = {"pool": machine.pool, "engine_key": engine_key}
        why = NightshiftError(f"the engine could not be loaded: {public_text.marked(error)}")
        for job_id in connection.scalars(of_engine, engine).all():
            jobs.fail(connection, job_id, why)
    return over


def lock(connection: Connection, job_id: int) -> None:
    """Takes the row of a job's engine, which comes before the rows of jobs: `failed` holds it when
    it fails the jobs of the engine.
    """
    statement = text("""
        SELECT FROM engines e JOIN jobs j USING (pool, engine_key)
        WHERE j.id = :job_id FOR UPDATE OF e
    """)
    connection.execute(statement, {"job_id": job_id})


def accept(connection: Connection, pool: str, engine_key: str, child: str | None) -> int:
    """Lets the machine of a child load an engine again at once; with None every machine of the pool. Returns
    how many machines were set aside.

    Loads that failed after the child began were those of other slots: their pause goes on to grow.
    """
    statement = text("""
        DELETE FROM refusals r WHERE r.pool = :pool AND r.engine_key = :engine_key
          AND (CAST(:child AS text) IS NULL OR EXISTS (
              SELECT FROM workers w WHERE w.id = :child AND w.supervisor = r.supervisor
              AND w.started_at >= r.failed_at))
    """)
    given = {"pool": pool, "engine_key": engine_key, "child": child}
    return connection.execute(statement, given).rowcount


def forgive(connection: Connection, pool: str, engine_key: str) -> bool:
    """Lets the engine of a new or reopened job be loaded again at once, with no failure counted. Returns
    whether there was anything to forgive.
    """
    statement = text("""
        UPDATE engines SET load_failures = 0
        WHERE pool = :pool AND engine_key = :engine_key AND load_failures > 0
    """)
    counted = connection.execute(statement, {"pool": pool, "engine_key": engine_key}).rowcount
    return accept(connection, pool, engine_key, None) + counted > 0


def cache_tokens(connection: Connection, pool: str, engine_key: str) -> int | None:
    """How many tokens the prefix cache of an engine kept when it was loaded last: 0 for an engine without
    one, None where that is not known.
    """
    statement = text("""
        SELECT cache_tokens FROM engines WHERE pool = :pool AND engine_key = :engine_key
    """)
    found: int | None = connection.scalar(statement, {"pool": pool, "engine_key": engine_key})
    return found


def carry_revision(
    connection: Connection, old_pool: str, old_key: str, new_pool: str, new_key: str
) -> None:
    """Holds the next engine of a job, in whichever pool, to the revision that the first load of its last
    one resolved to. BadInput where the next is held to another: rows of one job would come from two.
    """
    statement = text("""
        INSERT INTO engines AS e (pool, engine_key, revision)
        SELECT :new_pool, :new_key, revision FROM engines
        WHERE pool = :old_pool AND engine_key = :old_key AND revision IS NOT NULL
        ON CONFLICT (pool, engine_key) DO UPDATE
        SET revision = coalesce(e.revision, excluded.revision)
        RETURNING revision,
                  (SELECT revision FROM engines WHERE pool = :old_pool AND engine_key = :old_key)
                  AS wanted
    """)
    given = {"old_pool": old_pool, "old_key": old_key, "new_pool": new_pool, "new_key": new_key}
    held = connection.execute(statement, given).one_or_none()
    if held is not None and held.revision != held.wanted:
        raise BadInput(
            f"the model of the job was loaded at revision {held.wanted}, and the pool {new_pool} is "
            f"held to {held.revision}: name one with --revision"
        )


def release_revision(connection: Connection, pool: str, engine_key: str) -> str:
    """Forgets the revision that the first load of a model resolved to; returns that revision.

    Raises BadInput when there is none, or while a living child has the engine: rows of one job
    would come from two revisions at once. A child that loads read the revision and would pin it anew.
    """
    locked = text("""
        SELECT revision FROM engines WHERE pool = :pool AND engine_key = :engine_key FOR UPDATE
    """)
    engine = {"pool": pool, "engine_key": engine_key}
    revision: str | None = connection.scalar(locked, engine)
    if revision is None:
        raise BadInput("no load of its engine has pinned a revision: there is nothing to release")
    holders = text("""
        SELECT count(*) FROM workers WHERE pool = :pool AND engine_key = :engine_key
        AND (state = 'loading'
             OR state IN ('ready', 'draining') AND seen_at > now() - interval '1 minute')
    """)
    if found := connection.scalar(holders, engine):
        raise BadInput(
            f"{counted(found, 'worker')} {plural(found, 'has or loads', 'have or load')} its model at revision {revision}: stop them first, or "
            "submit a job with another engine.revision"
        )
    statement = text("""
        UPDATE engines SET revision = NULL WHERE pool = :pool AND engine_key = :engine_key
    """)
    connection.execute(statement, engine)
    forgive(connection, pool, engine_key)
    return revision


def set_aside(connection: Connection, pool: str | None = None) -> list[RowMapping]:
    """Rows of the view machines_set_aside, of one pool or of all."""
    statement = text("""
        SELECT * FROM machines_set_aside WHERE pool = coalesce(CAST(:pool AS text), pool)
        ORDER BY pool, host, engine_key
    """)
    return list(connection.execute(statement, {"pool": pool}).mappings())


def _count(connection: Connection, pool: str, engine_key: str, error: str) -> None:
    """Counts for those who look; the row of the engine is locked before those of its jobs."""
    statement = text("""
        INSERT INTO engines AS e (pool, engine_key, load_failures, last_error)
        VALUES (:pool, :engine_key, 1, :error)
        ON CONFLICT (pool, engine_key) DO UPDATE
        SET load_failures = e.load_failures + 1, last_error = excluded.last_error
    """)
    connection.execute(statement, {"pool": pool, "engine_key": engine_key, "error": error})


def _set_aside(
    connection: Connection,
    machine: Machine,
    engine_key: str,
    case: Case,
    error: str,
    public_error: str,
    backoff_seconds: float,
) -> None:
    """Children of the machine that failed together count as one failure; `failed_since` is the first
    one of the same concern.
    """
    statement = text("""
        INSERT INTO refusals AS r (pool, engine_key, supervisor, host, failures, retry_at, error,
                                   public_error, concern, passes)
        VALUES (:pool, :engine_key, :supervisor, :host, 1,
                now() + make_interval(secs => :backoff), :error, :public_error, :concern, :passes)
        ON CONFLICT (pool, engine_key, supervisor) DO UPDATE
        SET failures = r.failures + 1, error = excluded.error,
            public_error = excluded.public_error, concern = excluded.concern,
            passes = excluded.passes, failed_at = now(),
            failed_since = CASE WHEN r.concern = excluded.concern THEN r.failed_since
                                ELSE now() END,
            retry_at = now() + make_interval(
                secs => least(:longest, :backoff * power(2, least(r.failures, 20))))
        WHERE r.retry_at <= now()
    """)
    given = {
        **asdict(machine),
        "engine_key": engine_key,
        "error": error,
        "public_error": public_error,
        "concern": case.concern,
        "passes": case.passes,
        "backoff": backoff_seconds,
        "longest": max(backoff_seconds, LONGEST_PAUSE_SECONDS),
    }
    connection.execute(statement, given)


def _known(
    connection: Connection, machine: Machine, engine_key: str, alive_seconds: float
) -> tuple[list[FailedLoad], set[str]]:
    """Failed loads of living machines since the last load that worked, and the hosts whose slots may
    have the engine.

    A machine that is gone is no evidence: a broken node whose pod is replaced has another host name.
    """
    statement = text("""
        SELECT r.host, r.concern, r.passes, r.failures,
               extract(epoch FROM now() - r.failed_since)::float8 AS seconds,
               r.supervisor = :supervisor AS here
        FROM refusals r LEFT JOIN engines e USING (pool, engine_key)
        WHERE r.pool = :pool AND r.engine_key = :engine_key
          AND (e.loaded_at IS NULL OR r.failed_at > e.loaded_at)
          AND (r.supervisor = :supervisor OR EXISTS (
              SELECT FROM slots s WHERE s.supervisor = r.supervisor AND s.pool = r.pool
              AND s.seen_at > now() - make_interval(secs => :alive)))
    """)
    living = text("""
        SELECT DISTINCT host FROM slots
        WHERE pool = :pool AND state <> 'lost' AND coalesce(serves, :engine_key) = :engine_key
          AND (supervisor, slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
          AND seen_at > now() - make_interval(secs => :alive)
    """)
    given = {**asdict(machine), "engine_key": engine_key, "alive": alive_seconds}
    found = [
        FailedLoad(row.host, Concern(row.concern), row.passes, row.failures, row.seconds, row.here)
        for row in connection.execute(statement, given)
    ]
    return found, set(connection.scalars(living, given))


def _others_live(connection: Connection, machine: Machine, alive_seconds: float) -> bool:
    """True when another supervisor of the pool lives, whichever engines its slots may have."""
    statement = text("""
        SELECT EXISTS (
            SELECT FROM slots WHERE pool = :pool AND supervisor <> :supervisor
            AND seen_at > now() - make_interval(secs => :alive))
    """)
    return bool(connection.scalar(statement, {**asdict(machine), "alive": alive_seconds}))


def _in_use(connection: Connection, pool: str, engine_key: str) -> bool:
    """True when a living child has the engine, or loads it on a machine that has not failed yet for
    the job's own reason, since the last load that worked anywhere.

    A child that loads may be silent meanwhile; `workers.end_silent` ends it with its machine.
    """
    statement = text("""
        SELECT EXISTS (
            SELECT FROM workers w
            WHERE w.pool = :pool AND w.engine_key = :engine_key
              AND (w.state IN ('ready', 'draining') AND w.seen_at > now() - interval '1 minute'
                   OR w.state = 'loading' AND NOT EXISTS (
                       SELECT FROM refusals r LEFT JOIN engines e USING (pool, engine_key)
                       WHERE r.pool = w.pool AND r.engine_key = w.engine_key
                         AND r.supervisor = w.supervisor AND r.concern = :job
                         AND (e.loaded_at IS NULL OR r.failed_at > e.loaded_at))))
    """)
    given = {"pool": pool, "engine_key": engine_key, "job": Concern.JOB}
    return bool(connection.scalar(statement, given))


def _load_seconds(connection: Connection, pool: str, engine_key: str) -> float | None:
    """How long the last load of the engine took, if one ended well."""
    statement = text("""
        SELECT load_seconds FROM engines WHERE pool = :pool AND engine_key = :engine_key
    """)
    found: float | None = connection.scalar(statement, {"pool": pool, "engine_key": engine_key})
    return found
