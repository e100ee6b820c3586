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


def chosen(kept: Sequence[Tuning], slots: Mapping[str, int]) -> Tuning | None:
    """What fits a pool whose slots have this hardware: that of the hardware which most slots have, of
    those that were tuned. Where no slot is known, the only one that is kept.
    """
    by_hardware = {each.hardware: each for each in kept}
    tuned = [name for name in by_hardware if slots.get(name)]
    if tuned:
        return by_hardware[max(tuned, key=lambda name: slots[name])]
    return kept[0] if len(kept) == 1 and not slots else None
