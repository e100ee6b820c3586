"""What a child counts for Prometheus: a subscriber of its recorder.

The counts lie in files of prometheus_client's multiprocess mode (PROMETHEUS_MULTIPROC_DIR), which
the supervisor reads: whatever ends this child, what it counted stays.
"""

import os
import threading
from collections.abc import Mapping
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from nightshift.common.telemetry import metric_types, metrics
from nightshift.worker.telemetry.recorder import (
    BatchCommitted,
    EngineLoaded,
    Stage,
    Subscriber,
)
from nightshift.worker.telemetry.utilization import Utilization

log = structlog.get_logger(__name__)

ROOM_BYTES = 2**20
"""So much must be free where a child counts. Its files are written through a memory map, and a page
without room on the disk ends the process by SIGBUS.
"""

UPDATE_SECONDS = 1.0
"""Pause between two looks at the utilization; a killed child loses what came after the last."""


class Counts(Subscriber):
    """The counts of one child, from all of its threads. `utilization` is read every second."""

    def __init__(
        self,
        utilization: Utilization,
        pool: str,
        engine: str,
        slot: int,
        registry: CollectorRegistry | None = None,
    ) -> None:
        registry = registry or CollectorRegistry()
        each = {"pool": pool, "engine": engine}
        here = {**each, "slot": str(slot)}
        rows = metric_types.counter(metrics.ROWS, registry)
        self._rows = rows.labels(**each, outcome="ok")
        self._rows_failed = rows.labels(**each, outcome="failed")
        tokens = metric_types.counter(metrics.TOKENS, registry)
        self._prompt_tokens = tokens.labels(**each, kind="prompt")
        self._output_tokens = tokens.labels(**each, kind="output")
        batches = metric_types.counter(metrics.BATCHES, registry)
        self._batches = {
            outcome: batches.labels(**each, outcome=outcome)
            for outcome in metrics.BATCHES.labels["outcome"]
        }
        self._batch_seconds = metric_types.histogram(metrics.BATCH_SECONDS, registry).labels(**each)
        renewals = metric_types.counter(metrics.LEASE_RENEWALS, registry)
        self._renewals = {
            outcome: renewals.labels(pool=pool, outcome=outcome)
            for outcome in metrics.LEASE_RENEWALS.labels["outcome"]
        }
        self._loads = metric_types.counter(metrics.ENGINE_LOADS, registry).labels(
            pool=pool, outcome="ready"
        )
        stages = metric_types.counter(metrics.STAGE_SECONDS, registry)
        states = metric_types.counter(metrics.ENGINE_SECONDS, registry)
        self._seconds = {
            **{stage.value: stages.labels(**each, stage=stage.value) for stage in Stage},
            **{
                state: states.labels(**here, state=state)
                for state in metrics.ENGINE_SECONDS.labels["state"]
            },
        }
        self._counted = dict.fromkeys(self._seconds, 0.0)
        self._engine_rows = metric_types.gauge(metrics.ENGINE_ROWS, registry).labels(**here)
        self._concurrency = metric_types.gauge(metrics.ENGINE_CONCURRENCY, registry).labels(**here)
        self._load_seconds = metric_types.gauge(metrics.ENGINE_LOAD_SECONDS, registry).labels(
            **here
        )
        self._updating = threading.Lock()
        self._utilization = utilization

    @classmethod
    def in_folder(
        cls, folder: str, utilization: Utilization, pool: str, engine: str, slot: int
    ) -> Self | None:
        """For a child that was told to count in `folder`; None where there is no room."""
        if not has_room(folder):
            log.warning("no_room_to_count", folder=folder, needed_bytes=ROOM_BYTES)
            return None
        return cls(utilization, pool, engine, slot)

    def start(self) -> None:
        """Keeps the seconds up to date from now on, in a thread of its own."""
        threading.Thread(target=self._update_on, name="counts", daemon=True).start()

    def finish(self) -> None:
        """Brings the seconds up to date for the last time."""
        self.update()

    def update(self) -> None:
        """Counts the seconds since the last look, and shows how many rows are in the engine."""
        with self._updating:
            engine = self._utilization.occupancy()
            stages = self._utilization.seconds()
            self._advance(
                {
                    **{stage.value: seconds for stage, seconds in stages.items()},
                    "full": engine.seconds - engine.fewer_seconds,
                    "partial": engine.fewer_seconds - engine.empty_seconds,
                    "empty": engine.empty_seconds,
                    "no_work": engine.no_work_seconds,
                }
            )
            self._engine_rows.set(self._utilization.rows)

    def _update_on(self) -> None:
        paused = threading.Event()
        while not paused.wait(UPDATE_SECONDS):
            self.update()

    def _advance(self, now: Mapping[str, float]) -> None:
        for name, seconds in now.items():
            # A difference of sums may lose its last bit; a counter never falls.
            self._seconds[name].inc(max(0.0, seconds - self._counted[name]))
            self._counted[name] = max(seconds, self._counted[name])

    def engine_loaded(self, loaded: EngineLoaded) -> None:
        """Counts a load, and shows how long it took and how many rows the engine can run."""
        self._loads.inc()
        self._load_seconds.set(loaded.load_seconds)
        self._concurrency.set(loaded.concurrency)

    def batch_committed(self, batch: BatchCommitted) -> None:
        """Counts the rows, the tokens and the time of a batch."""
        self._rows.inc(batch.rows - batch.rows_failed)
        self._rows_failed.inc(batch.rows_failed)
        self._prompt_tokens.inc(batch.prompt_tokens)
        self._output_tokens.inc(batch.output_tokens)
        self._batches["done" if batch.whole else "split"].inc()
        self._batch_seconds.observe(batch.seconds)

    def batch_ended(self, outcome: str | None = None) -> None:
        """Counts a lease that ended otherwise."""
        if outcome is not None:
            self._batches[outcome].inc()

    def leases_renewed(self, held: int, lost: int) -> None:
        """Counts leases."""
        self._renewals["held"].inc(held)
        self._renewals["lost"].inc(lost)

    def heartbeat_failed(self, error: Exception) -> None:
        """Counts a heartbeat without an answer."""
        self._renewals["failed"].inc()


def has_room(folder: str | os.PathLike[str]) -> bool:
    """Whether a child can count there."""
    try:
        free = os.statvfs(folder)
    except OSError:
        return False
    # A file system without a size of its own, as a tmpfs with size=0, has 0 blocks.
    return free.f_blocks == 0 or free.f_bavail * free.f_frsize >= ROOM_BYTES
