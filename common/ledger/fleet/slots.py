"""Slots of machines: what each has and refuses, and what it is to have by the plan of its pool.

A supervisor writes the rows of its own slots and reads the plan: no machine ever waits for another.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import text

from nightshift.common.ledger import schema
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet.pool_plans import PLAN_SECONDS

STALE_SECONDS = 2.0
"""A plan that is older counts for nothing: each slot keeps what it has."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Who keeps some slots: a supervisor of one pool, on one host.

    `serves` is the only engine key that its slots may have, if there is one.
    """

    supervisor: str
    pool: str
    host: str
    serves: str | None = None


@dataclass(frozen=True, slots=True)
class SlotReport:
    """What a supervisor knows of a slot: its GPUs, and the child that it has, with its engine.

    `leaves` says that the child was asked to make room, `lost` that the kernel keeps the killed child,
    `idle` that the child lives, holds nothing and does not beat for itself. `gpu_figures` is what its
    GPUs do, as the column of that name has it; `hardware` is what the slot is made of.
    """

    slot: int
    gpus: str
    worker_id: str | None
    engine_key: str | None
    leaves: bool
    lost: bool = False
    idle: bool = False
    gpu_figures: str | None = None
    hardware: str | None = None


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """What the ledger says of a slot: its child, and the engine that it should have.

    `state` and `silent_seconds` are the child's, None before it has registered. `planned_key` is
    None where the slot keeps what it has, also while no plan is younger than STALE_SECONDS;
    `job_id` is a job whose spec loads the planned engine. `has_work` says that the child has loaded
    its engine and that a batch waits which the child may claim; `siblings_idle` that no batch waits,
    that the child holds some, and that another child of its queue holds none. A `cordoned` slot takes
    no new work, and of a `drained` one the child leaves.
    """

    slot: int
    state: str | None
    silent_seconds: float | None
    planned_key: str | None
    job_id: int | None
    has_work: bool = False
    cordoned: bool = False
    drained: bool = False
    siblings_idle: bool = False


def report(
    connection: Connection,
    machine: Machine,
    slots: Sequence[SlotReport],
    *,
    idle_seconds: float,
    seen_every_seconds: float,
) -> tuple[list[SlotOrder], bool]:
    """Writes what the slots of a machine have, and reads what they should have, in one statement.

    The second value says that jobs run and the plan is old. Raises SchemaMismatch where the tables
    want newer code. A row is written only when something changed, or
    after `seen_every_seconds`. An engine counts as idle after `idle_seconds` without a batch. The
    children of slots that are `idle` count as seen now.
    """
    statement = text("""
        WITH refused AS (
            SELECT coalesce(array_agg(engine_key ORDER BY engine_key), '{}') AS keys FROM refusals
            WHERE pool = :pool AND supervisor = :supervisor AND retry_at > now()
        ), found AS (
            SELECT g.slot, g.gpus, g.gpu_figures, g.hardware, g.worker_id, g.engine_key,
                   w.state AS child_state, w.ready_at,
                   extract(epoch FROM now() - w.seen_at)::float8 AS silent_seconds,
                   CASE WHEN g.worker_id IS NULL THEN 'free' WHEN g.lost THEN 'lost'
                        WHEN g.leaves THEN 'draining'
                        WHEN w.state IN ('ready', 'draining') THEN w.state
                        ELSE 'loading' END AS state,
                   CASE WHEN w.state = 'ready' AND NOT EXISTS (
                            SELECT FROM batches b WHERE b.owner = w.id AND b.state = 'leased')
                        THEN now() + make_interval(secs => :idle) END AS idle_at
            FROM unnest(CAST(:slots AS integer[]), CAST(:gpus AS text[]),
                        CAST(:worker_ids AS text[]), CAST(:engine_keys AS text[]),
                        CAST(:leaves AS boolean[]), CAST(:lost AS boolean[]),
                        CAST(:gpu_figures AS jsonb[]), CAST(:hardware AS text[]))
                 AS g (slot, gpus, worker_id, engine_key, leaves, lost, gpu_figures, hardware)
            LEFT JOIN workers w ON w.id = g.worker_id
        ), held AS (
            -- Not the view cordoned_slots: the rows of the slots may not be written yet.
            SELECT f.slot, bool_or(c.drains) AS drains
            FROM found f JOIN cordons c
              ON (c.kind, c.name) IN (('host', :host), ('worker', :supervisor),
                                      ('worker', concat_ws('/', :supervisor, f.slot)))
            GROUP BY f.slot
        ), seen AS (
            -- A row that another process has locked is being beaten or ended.
            UPDATE workers SET seen_at = now(), ended_at = NULL, error = NULL,
                   state = CASE WHEN slot IN (SELECT slot FROM held) THEN 'draining' ELSE 'ready' END
            WHERE id IN (SELECT id FROM workers WHERE id = ANY (CAST(:idle_ids AS text[]))
                         FOR NO KEY UPDATE SKIP LOCKED)
        ), waiting AS (
            SELECT loaded.engine_key
            FROM (SELECT DISTINCT engine_key FROM found WHERE child_state <> 'loading') AS loaded
            -- LATERAL with LIMIT keeps to the index; the job as in a claim.
            CROSS JOIN LATERAL (
                SELECT FROM batches b
                WHERE b.queue = concat_ws('.', CAST(:pool AS text), loaded.engine_key)
                  AND b.state = 'queued'
                  AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
                ORDER BY b.priority DESC, b.rank, b.id LIMIT 1) AS next
        ), written AS (
            INSERT INTO slots AS s (supervisor, slot, pool, host, gpus, serves, state, worker_id,
                                    engine_key, ready_at, idle_at, refused, gpu_figures, hardware)
            SELECT :supervisor, f.slot, :pool, :host, f.gpus, :serves, f.state, f.worker_id,
                   f.engine_key, f.ready_at, f.idle_at, r.keys, f.gpu_figures, f.hardware
            FROM found f, refused r
            ON CONFLICT (supervisor, slot) DO UPDATE
            SET state = excluded.state, worker_id = excluded.worker_id,
                engine_key = excluded.engine_key, ready_at = excluded.ready_at,
                refused = excluded.refused, gpu_figures = excluded.gpu_figures, seen_at = now(),
                idle_at = CASE WHEN s.worker_id = excluded.worker_id
                                    AND excluded.idle_at IS NOT NULL
                               THEN coalesce(s.idle_at, excluded.idle_at)
                               ELSE excluded.idle_at END
            WHERE s.seen_at < now() - make_interval(secs => :seen_every)
               OR (s.state, s.worker_id, s.engine_key, s.ready_at, s.refused, s.idle_at IS NULL)
                  IS DISTINCT FROM (excluded.state, excluded.worker_id, excluded.engine_key,
                                    excluded.ready_at, excluded.refused, excluded.idle_at IS NULL)
        )
        SELECT f.slot, f.child_state AS state, f.silent_seconds, o.planned_key,
               f.child_state <> 'loading' AND EXISTS (
                   SELECT FROM waiting w WHERE w.engine_key = f.engine_key) AS has_work,
               f.child_state = 'ready' AND f.idle_at IS NULL AND EXISTS (
                   SELECT FROM workers w WHERE w.pool = :pool AND w.engine_key = f.engine_key
                   AND w.engine_key NOT IN (SELECT engine_key FROM waiting) AND w.state = 'ready'
                   AND (w.supervisor, w.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
                   AND NOT EXISTS (SELECT FROM batches b
                                   WHERE b.owner = w.id AND b.state = 'leased')) AS siblings_idle,
               (SELECT min(j.id) FROM jobs j WHERE j.pool = :pool AND j.state = 'running'
                AND j.engine_key = o.planned_key) AS job_id,
               coalesce(p.computed_at < now() - make_interval(secs => :old), true) AND EXISTS (
                   SELECT FROM jobs j WHERE j.pool = :pool AND j.state = 'running') AS is_old,
               (SELECT compatible_from FROM ledger_meta) AS compatible_from,
               h.slot IS NOT NULL AS cordoned, coalesce(h.drains, false) AS drained
        FROM found f CROSS JOIN refused r
        LEFT JOIN held h ON h.slot = f.slot
        LEFT JOIN pool_plans p ON p.pool = :pool
        LEFT JOIN LATERAL (
            SELECT engine_key AS planned_key FROM slot_plans
            WHERE supervisor = :supervisor AND slot = f.slot AND engine_key <> ALL (r.keys)
              AND p.computed_at > now() - make_interval(secs => :stale)
        ) AS o ON true
        ORDER BY f.slot
    """)
    found = connection.execute(
        statement,
        {
            **asdict(machine),
            "slots": [each.slot for each in slots],
            "gpus": [each.gpus for each in slots],
            "worker_ids": [each.worker_id for each in slots],
            "engine_keys": [each.engine_key for each in slots],
            "leaves": [each.leaves for each in slots],
            "lost": [each.lost for each in slots],
            "gpu_figures": [each.gpu_figures for each in slots],
            "hardware": [each.hardware for each in slots],
            "idle_ids": [each.worker_id for each in slots if each.idle],
            "idle": idle_seconds,
            "seen_every": seen_every_seconds,
            "old": PLAN_SECONDS,
            "stale": STALE_SECONDS,
        },
    ).all()
    orders = [
        SlotOrder(
            row.slot,
            row.state,
            row.silent_seconds,
            row.planned_key,
            row.job_id,
            bool(row.has_work),
            row.cordoned,
            row.drained,
            bool(row.siblings_idle),
        )
        for row in found
    ]
    for row in found[:1]:
        schema.refuse_newer(row.compatible_from)
    return orders, any(row.is_old for row in found)


def leave(connection: Connection, supervisor: str) -> None:
    """Takes the slots of a supervisor that ends out of the fleet, and the cordons of its own with
    them: its name is never used again. A cordon of its host stays.
    """
    statement = text("""
        WITH own AS (DELETE FROM cordons WHERE kind = 'worker' AND split_part(name, '/', 1) = :supervisor)
        DELETE FROM slots WHERE supervisor = :supervisor
    """)
    connection.execute(statement, {"supervisor": supervisor})
