"""Engine arguments that `nightshift tune` found, by model, kind of task and hardware."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

LIVING_SECONDS = 60.0
"""A machine that was silent for longer counts as gone."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The arguments with which a model was fastest on some hardware, and how fast; `rounds` counts how
    often it was tuned there.
    """

    hardware: str
    args: Mapping[str, Any]
    rows_per_second: float
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class MachineLoads:
    """What a living machine of a pool made of an engine: whether a slot has or loads it, and how many
    loads failed in a row. `passes` says that the last failure may pass, `error` what it was.
    """

    has_engine: bool = False
    failures: int = 0
    passes: bool = True
    error: str | None = None


def keep(connection: Connection, model: str, task: str, found: Tuning) -> None:
    """Keeps what a round of tuning found, in the place of what an earlier one found."""
    statement = text("""
        INSERT INTO tunings AS t (model, task, hardware, args, rows_per_second)
        VALUES (:model, :task, :hardware, CAST(:args AS jsonb), :rows_per_second)
        ON CONFLICT (model, task, hardware) DO UPDATE
        SET args = excluded.args, rows_per_second = excluded.rows_per_second,
            rounds = t.rounds + 1, tuned_at = now()
    """)
    values = {
        "model": model,
        "task": task,
        "hardware": found.hardware,
        "args": json.dumps(dict(found.args)),
        "rows_per_second": found.rows_per_second,
    }
    connection.execute(statement, values)


def of_model(connection: Connection, model: str, task: str) -> list[Tuning]:
    """What is kept for a model and a kind of task, the latest first."""
    statement = text("""
        SELECT hardware, args, rows_per_second, rounds FROM tunings
        WHERE model = :model AND task = :task ORDER BY tuned_at DESC
    """)
    found = connection.execute(statement, {"model": model, "task": task})
    return [Tuning(**row) for row in found.mappings()]


def hardware(connection: Connection, pool: str) -> Counter[str]:
    """How many living slots of a pool have which hardware, as far as their machines say so."""
    statement = text("""
        SELECT hardware, count(*) AS slots FROM slots
        WHERE pool = :pool AND hardware IS NOT NULL
          AND seen_at > now() - make_interval(secs => :alive)
        GROUP BY hardware
    """)
    rows = connection.execute(statement, {"pool": pool, "alive": LIVING_SECONDS})
    return Counter({row.hardware: row.slots for row in rows})


def is_served(connection: Connection, pool: str, engine_key: str) -> bool:
    """Whether a slot of the pool lives that may have an engine, with a child or without."""
    statement = text("""
        SELECT EXISTS (
            SELECT FROM slots WHERE pool = :pool AND coalesce(serves, :engine_key) = :engine_key
            AND seen_at > now() - make_interval(secs => :alive))
    """)
    given = {"pool": pool, "engine_key": engine_key, "alive": LIVING_SECONDS}
    return bool(connection.scalar(statement, given))


def loads_of(connection: Connection, pool: str, engine_key: str) -> list[MachineLoads]:
    """What each living machine of a pool that takes work and may have an engine made of it."""
    statement = text("""
        SELECT bool_or(s.engine_key IS NOT DISTINCT FROM :engine_key
                       AND s.state IN ('loading', 'ready', 'draining')) AS has_engine,
               coalesce(max(r.failures), 0) AS failures, coalesce(bool_and(r.passes), true) AS passes,
               max(r.error) AS error
        FROM slots s LEFT JOIN refusals r
          ON (r.pool, r.supervisor, r.engine_key) = (s.pool, s.supervisor, :engine_key)
        WHERE s.pool = :pool AND s.state <> 'lost'
          AND coalesce(s.serves, :engine_key) = :engine_key
          AND (s.supervisor, s.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
          AND s.seen_at > now() - make_interval(secs => :alive)
        GROUP BY s.supervisor ORDER BY s.supervisor
    """)
    given = {"pool": pool, "engine_key": engine_key, "alive": LIVING_SECONDS}
    return [MachineLoads(**row) for row in connection.execute(statement, given).mappings()]


def first_loss(connection: Connection, job_id: int) -> str | None:
    """Why a job first lost a batch with its engine or its worker; None where it lost none."""
    statement = text("""
        SELECT coalesce(error, 'its worker is gone') FROM attempts
        WHERE job_id = :job_id AND outcome = 'lost' ORDER BY ended_at, batch_id LIMIT 1
    """)
    found: str | None = connection.scalar(statement, {"job_id": job_id})
    return found


def chosen(kept: Sequence[Tuning], slots: Mapping[str, int]) -> Tuning | None:
    """The tuning for a pool whose `slots` have this hardware: the one of the tuned hardware that most slots have.
    Where no slot is known, the tuning is used if only one is kept.
    """
    by_hardware = {each.hardware: each for each in kept}
    tuned = [name for name in by_hardware if slots.get(name)]
    if tuned:
        return by_hardware[max(tuned, key=lambda name: slots[name])]
    return kept[0] if len(kept) == 1 and not slots else None
