"""Machines of a fleet as their rows in the ledger: slots, children, and the batches that these hold."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.world import World

GPU = 80 * 2**30


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot in a state, with the engine of a job; `works` for a child that holds a batch."""

    state: str = "ready"
    job: int | None = None
    works: bool = False
    busy: float | None = None
    error: str | None = None
    silent_seconds: float = 0.0


def machine(world: World, host: str, slots: Sequence[Slot], pool: str = "default") -> None:
    """A machine of a pool, which was just seen."""
    for number, slot in enumerate(slots):
        child = None if slot.state == "free" else f"w-{host}-{number}"
        figures: list[dict[str, Any]] = []
        if slot.busy is not None:
            used = round(GPU * (0.5 + 0.45 * slot.busy))
            figures = [
                {"gpu": str(number), "busy": slot.busy, "memory_used": used, "memory_total": GPU}
            ]
        key = (
            world.ask("SELECT engine_key FROM jobs WHERE id = %s", slot.job)[0][0]
            if slot.job
            else None
        )
        world.do(
            "INSERT INTO slots (supervisor, slot, host, pool, gpus, state, worker_id, engine_key, refused, "
            "gpu_figures, seen_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, '{}', %s, "
            "now() - make_interval(secs => %s))",
            *(f"s-{host}-{pool}", number, host, pool, str(number) if figures else "", slot.state),
            *(child, key, json.dumps(figures) if figures else None, slot.silent_seconds),
        )
        if child is None:
            continue
        loaded = slot.state in ("ready", "draining")
        world.do(
            "INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, engine, engine_version, "
            "state, window_rows, error) VALUES (%s, %s, %s, %s, %s, 1, %s, %s, %s, %s, 256, %s)",
            *(child, f"s-{host}-{pool}", pool, number, host, key),
            *("vllm" if loaded else None, "0.11.0" if loaded else None),
            *(slot.state if slot.state in ("ready", "draining") else "loading", slot.error),
        )
        if slot.works:
            world.do(
                "UPDATE batches SET state = 'leased', owner = %s, attempt = 1, "
                "lease_expires_at = now() + interval '1 hour' WHERE id = "
                "(SELECT min(id) FROM batches WHERE job_id = %s AND state = 'pending')",
                *(child, slot.job),
            )
