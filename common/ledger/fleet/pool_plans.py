"""The plan of a pool in the ledger: what it is made of, who may write it, and what it says.

Only who holds the pool's lock writes a plan, into rows that nobody else locks.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import text

from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.ledger.connection import Connection, scan_in_order

PLAN_LOCK = 0x6E696768
"""First half of the advisory lock of a pool's plan; the second half is a hash of the pool."""

PLAN_SECONDS = 0.9
"""A plan that is older is computed anew by whoever sees it first."""

FORGOTTEN_SECONDS = 3600.0
"""Slots and refusals of machines that are gone are deleted after this time."""

STORE = (
    """
    DELETE FROM slot_plans p WHERE p.pool = :pool AND NOT EXISTS (
        SELECT FROM unnest(CAST(:supervisors AS text[]), CAST(:slots AS integer[]))
             AS g (supervisor, slot)
        WHERE g.supervisor = p.supervisor AND g.slot = p.slot)
    """,
    """
    INSERT INTO slot_plans AS p (supervisor, slot, pool, engine_key)
    SELECT g.supervisor, g.slot, :pool, g.engine_key
    FROM unnest(CAST(:supervisors AS text[]), CAST(:slots AS integer[]), CAST(:keys AS text[]))
         AS g (supervisor, slot, engine_key)
    ON CONFLICT (supervisor, slot) DO UPDATE SET engine_key = excluded.engine_key
    WHERE p.engine_key <> excluded.engine_key
    """,
    """
    INSERT INTO pool_plans AS p (pool, computed_at, desired_slots, waiting_since)
    SELECT :pool, clock_timestamp(), CAST(:desired AS jsonb),
           coalesce(jsonb_object_agg(key, extract(epoch FROM now())), '{}')
    FROM unnest(CAST(:waiting AS text[])) AS key
    ON CONFLICT (pool) DO UPDATE
    SET computed_at = excluded.computed_at, desired_slots = excluded.desired_slots,
        waiting_since = excluded.waiting_since || coalesce((
            SELECT jsonb_object_agg(key, value) FROM jsonb_each(p.waiting_since)
            WHERE excluded.waiting_since ? key), '{}')
    """,
    """
    DELETE FROM slots WHERE pool = :pool
      AND seen_at < now() - make_interval(secs => :forgotten)
    """,
    """
    DELETE FROM refusals WHERE pool = :pool
      AND retry_at < now() - make_interval(secs => :forgotten)
    """,
)
"""The statements that store a plan, in order; rows of machines that are long gone go with it."""


def try_lock(connection: Connection, pool: str) -> bool:
    """Takes the pool's lock for this transaction; False when another has it, or has just planned."""
    scan_in_order(connection)
    statement = text("""
        SELECT pg_try_advisory_xact_lock(:lock, hashtext(:pool)) AND NOT EXISTS (
            SELECT FROM pool_plans
            WHERE pool = :pool AND computed_at >= now() - make_interval(secs => :old))
    """)
    asked = {"lock": PLAN_LOCK, "pool": pool, "old": PLAN_SECONDS}
    return bool(connection.scalar(statement, asked))


def slots(connection: Connection, pool: str, alive_seconds: float) -> list[Slot]:
    """The slots of a pool whose machines were seen within `alive_seconds`, without those that are lost
    or cordoned.

    A slot that is free, or whose child makes room, counts as having what it was planned to have.
    """
    statement = text("""
        SELECT concat_ws('/', s.supervisor, s.slot) AS id, s.refused, s.serves,
               CASE WHEN s.state IN ('free', 'draining') THEN p.engine_key
                    ELSE s.engine_key END AS engine_key,
               coalesce(s.idle_at <= now(), false) AS idle,
               CASE WHEN s.state = 'ready' THEN extract(epoch FROM now() - s.ready_at)
                    ELSE 0 END::float8 AS held_seconds
        FROM slots s LEFT JOIN slot_plans p
             ON p.supervisor = s.supervisor AND p.slot = s.slot AND p.engine_key <> ALL (s.refused)
        WHERE s.pool = :pool AND s.seen_at > now() - make_interval(secs => :alive)
          AND s.state <> 'lost'
          AND (s.supervisor, s.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
    """)
    found = connection.execute(statement, {"pool": pool, "alive": alive_seconds})
    return [
        Slot(row.id, row.engine_key, row.idle, row.held_seconds, frozenset(row.refused), row.serves)
        for row in found
    ]


def demand(connection: Connection, pool: str) -> list[JobDemand]:
    """The slots that each job of a pool could use now."""
    statement = text("""
        SELECT d.job AS job_id, d.engine_key, d.slots, d.most_slots, d.priority, j.tenant,
               coalesce(t.weight, 1) AS tenant_weight,
               coalesce((j.spec ->> 'weight')::float8, 1) AS weight
        FROM job_demand d JOIN jobs j ON j.id = d.job LEFT JOIN tenants t ON t.name = j.tenant
        WHERE d.pool = :pool AND d.slots > 0
    """)
    return [JobDemand(**row) for row in connection.execute(statement, {"pool": pool}).mappings()]


def engines(connection: Connection, pool: str) -> dict[str, Engine]:
    """What is known of the engines of a pool, by engine key."""
    statement = text("""
        SELECT coalesce(e.engine_key, w.key) AS key, coalesce(e.load_seconds, 0) AS load_seconds,
               coalesce(greatest(0, extract(epoch FROM now()) - w.since), 0)::float8 AS waiting
        FROM (SELECT * FROM engines WHERE pool = :pool) AS e
        FULL JOIN (SELECT key, value::float8 AS since FROM pool_plans, jsonb_each(waiting_since)
                   WHERE pool = :pool) AS w ON w.key = e.engine_key
    """)
    found = connection.execute(statement, {"pool": pool})
    return {row.key: Engine(row.load_seconds, row.waiting) for row in found}


def store(
    connection: Connection,
    pool: str,
    engine_of: Mapping[str, str | None],
    desired_slots: Mapping[str, int],
    waiting: Sequence[str],
) -> None:
    """Writes the plan of a pool: the engines of its slots, as far as they change.

    `waiting` are the engine keys that have work and no slot; a key that waited before goes on.
    """
    planned = [(id, key) for id, key in engine_of.items() if key is not None]
    pieces = [id.rpartition("/") for id, _ in planned]
    given = {
        "pool": pool,
        "supervisors": [supervisor for supervisor, _, _ in pieces],
        "slots": [int(slot) for _, _, slot in pieces],
        "keys": [key for _, key in planned],
        "desired": json.dumps(desired_slots),
        "waiting": list(waiting),
        "forgotten": FORGOTTEN_SECONDS,
    }
    for statement in STORE:
        connection.execute(text(statement), given)
