"""Slots of machines: what each has and refuses, and what it is to have by the plan of its pool.

A supervisor writes the rows of its own slots and reads the plan: no machine ever waits for another.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Row, text

from nightshift.common.ledger import schema
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet.pool_plans import PLAN_SECONDS
from nightshift.common.ledger.statements import statement

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
    that the child holds some, and that another child of its queue holds none; `holds_nothing` that the child is
    ready and has no lease. A `cordoned` slot takes no new work, and of a `drained` one the child leaves.
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
    holds_nothing: bool = False


FACTS = statement(__file__, "slot_facts")

WRITE = text("""
    INSERT INTO slots AS s (supervisor, slot, pool, host, gpus, serves, state, worker_id, engine_key,
                            ready_at, idle_at, refused, gpu_figures, hardware)
    SELECT :supervisor, f.slot, :pool, :host, f.gpus, :serves, f.state, f.worker_id, f.engine_key,
           f.ready_at, f.idle_at, CAST(:refused AS text[]), f.gpu_figures, f.hardware
    FROM unnest(CAST(:slots AS integer[]), CAST(:gpus AS text[]), CAST(:worker_ids AS text[]),
                CAST(:engine_keys AS text[]), CAST(:gpu_figures AS jsonb[]), CAST(:hardware AS text[]),
                CAST(:states AS text[]), CAST(:ready_at AS timestamptz[]), CAST(:idle_at AS timestamptz[]))
         AS f (slot, gpus, worker_id, engine_key, gpu_figures, hardware, state, ready_at, idle_at)
    ON CONFLICT (supervisor, slot) DO UPDATE
    SET state = excluded.state, worker_id = excluded.worker_id, engine_key = excluded.engine_key,
        ready_at = excluded.ready_at, refused = excluded.refused,
        gpu_figures = excluded.gpu_figures, seen_at = now(),
        idle_at = CASE WHEN s.worker_id = excluded.worker_id AND excluded.idle_at IS NOT NULL
                       THEN coalesce(s.idle_at, excluded.idle_at) ELSE excluded.idle_at END
""")
"""What slots of a machine have."""


def report(
    connection: Connection,
    machine: Machine,
    slots: Sequence[SlotReport],
    *,
    idle_seconds: float,
    seen_every_seconds: float,
) -> tuple[list[SlotOrder], bool]:
    """Reads what the slots of a machine should have, and writes what they have.

    The second value says that jobs run and the plan is old. Raises SchemaMismatch where the tables
    want newer code. A row is written only when something changed, or
    after `seen_every_seconds`. An engine counts as idle after `idle_seconds` without a batch. The
    children of slots that are `idle` count as seen now.
    """
    slots = sorted(slots, key=lambda each: each.slot)
    found = connection.execute(
        FACTS,
        {
            "pool": machine.pool,
            "host": machine.host,
            "supervisor": machine.supervisor,
            "slots": [each.slot for each in slots],
            "worker_ids": [each.worker_id for each in slots],
            "engine_keys": [each.engine_key for each in slots],
            "leaves": [each.leaves for each in slots],
            "lost": [each.lost for each in slots],
            "idle_ids": [each.worker_id for each in slots if each.idle],
            "idle": idle_seconds,
            "seen_every": seen_every_seconds,
            "old": PLAN_SECONDS,
            "stale": STALE_SECONDS,
        },
    ).all()
    for row in found[:1]:
        schema.refuse_newer(row.compatible_from)
    news = [pair for pair in zip(slots, found, strict=True) if pair[1].is_news]
    if news:
        _write(connection, machine, news)
    orders = [
        SlotOrder(
            row.slot,
            row.child_state,
            row.silent_seconds,
            row.planned_key,
            row.job_id,
            bool(row.has_work),
            row.cordoned,
            row.drained,
            bool(row.siblings_idle),
            holds_nothing=row.idle_at is not None,
        )
        for row in found
    ]
    return orders, any(row.is_old for row in found)


def _write(
    connection: Connection,
    machine: Machine,
    news: Sequence[tuple[SlotReport, Row[Any]]],
) -> None:
    """Writes the rows of slots, each with what the ledger knows of it."""
    connection.execute(
        WRITE,
        {
            **asdict(machine),
            "slots": [slot.slot for slot, _ in news],
            "gpus": [slot.gpus for slot, _ in news],
            "worker_ids": [slot.worker_id for slot, _ in news],
            "engine_keys": [slot.engine_key for slot, _ in news],
            "gpu_figures": [slot.gpu_figures for slot, _ in news],
            "hardware": [slot.hardware for slot, _ in news],
            "states": [row.state for _, row in news],
            "ready_at": [row.ready_at for _, row in news],
            "idle_at": [row.idle_at for _, row in news],
            "refused": news[0][1].refused,
        },
    )


BACKS_OFF = text("""
    SELECT EXISTS (
        SELECT FROM jobs j JOIN batches b ON b.job_id = j.id
        WHERE j.pool = :pool AND j.state = 'running' AND b.state = 'pending' AND b.not_before > now()
          AND j.engine_key = coalesce(CAST(:serves AS text), j.engine_key))
""")


def backs_off(connection: Connection, machine: Machine) -> bool:
    """Whether a batch that the machine may serve waits for its next try: no plan counts such a batch."""
    asked = {"pool": machine.pool, "serves": machine.serves}
    return bool(connection.scalar(BACKS_OFF, asked))


def leave(connection: Connection, supervisor: str) -> None:
    """Takes the slots of a supervisor that ends out of the fleet, and the cordons of its own with
    them: its name is never used again. A cordon of its host stays.
    """
    statement = text("""
        WITH own AS (DELETE FROM cordons WHERE kind = 'worker' AND split_part(name, '/', 1) = :supervisor)
        DELETE FROM slots WHERE supervisor = :supervisor
    """)
    connection.execute(statement, {"supervisor": supervisor})
