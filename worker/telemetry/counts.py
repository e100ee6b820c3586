"""What a child counts for Prometheus: a subscriber of its recorder.

The counts lie in files of prometheus_client's multiprocess mode (PROMETHEUS_MULTIPROC_DIR), which
the supervisor reads: whatever ends this child, what it counted stays.
"""

import os
import threading
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from nightshift.worker.telemetry import metrics
from nightshift.worker.telemetry.metrics import WorkerMetrics, by_value
from nightshift.worker.telemetry.recorder import BatchCommitted, EngineLoaded, Subscriber
from nightshift.worker.telemetry.stage import Stage
from nightshift.worker.telemetry.utilization import Utilization

log = structlog.get_logger(__name__)

ROOM_BYTES = 2**20
"""So much must be free where a child counts. Its files are written through a memory map, and a page
without room on the disk ends the process by SIGBUS.
"""


class Counts(Subscriber):
    """The counts of one child, from all of its threads."""

    every_seconds = 1.0
    """Pause between two updates; a killed child loses the seconds that came after the last."""

    def __init__(
        self,
        utilization: Utilization,
        pool: str,
        engine: str,
        slot: int,
        registry: CollectorRegistry | None = None,
    ) -> None:
        counted = WorkerMetrics(registry or CollectorRegistry())
        own = {"pool": pool, "engine": engine}
        here = {**own, "slot": str(slot)}
        self._rows = by_value(counted.rows, own, "outcome", metrics.ROW_OUTCOMES)
        self._tokens = by_value(counted.tokens, own, "kind", metrics.TOKEN_KINDS)
        self._shared = counted.rows_shared.labels(**own)
        self._batches = by_value(counted.batches, own, "outcome", metrics.BATCH_OUTCOMES)
        self._batch_seconds = counted.batch_seconds.labels(**own)
        self._renewals = by_value(
            counted.lease_renewals, {"pool": pool}, "outcome", metrics.RENEWAL_OUTCOMES
        )
        self._loads = counted.engine_loads.labels(pool=pool, outcome="ready")
        self._seconds = {
            **by_value(counted.stage_seconds, own, "stage", tuple(Stage)),
            **by_value(counted.engine_seconds, here, "state", metrics.ENGINE_STATES),
        }
        self._counted = dict.fromkeys(self._seconds, 0.0)
        self._engine_rows = counted.engine_rows.labels(**here)
        self._concurrency = counted.engine_concurrency.labels(**here)
        self._load_seconds = counted.engine_load_seconds.labels(**here)
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

    def update(self) -> None:
        """Counts the seconds since the last look, and shows how many rows are in the engine."""
        with self._updating:
            engine = self._utilization.occupancy()
            now = {
                **self._utilization.seconds(),
                "full": engine.seconds - engine.fewer_seconds,
                "partial": engine.fewer_seconds - engine.empty_seconds,
                "empty": engine.empty_seconds,
                "no_work": engine.no_work_seconds,
            }
            for name, seconds in now.items():
                # A difference of sums may lose its last bit; a counter never falls.
                self._seconds[name].inc(max(0.0, seconds - self._counted[name]))
                self._counted[name] = max(seconds, self._counted[name])
            self._engine_rows.set(self._utilization.rows)

    def engine_loaded(self, loaded: EngineLoaded) -> None:
        """Counts a load, and shows how long it took and how many rows the engine can run."""
        self._loads.inc()
        self._load_seconds.set(loaded.load_seconds)
        self._concurrency.set(loaded.concurrency)

    def batch_committed(self, batch: BatchCommitted) -> None:
        """Counts the rows, the tokens and the time of a batch."""
        self._rows["ok"].inc(batch.rows - batch.rows_failed)
        self._rows["failed"].inc(batch.rows_failed)
        self._tokens["prompt"].inc(batch.prompt_tokens)
        self._tokens["output"].inc(batch.output_tokens)
        self._tokens["cached"].inc(batch.cached_tokens)
        self._tokens["reasoning"].inc(batch.reasoning_tokens)
        self._shared.inc(batch.rows_shared)
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
