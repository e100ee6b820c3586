"""Where a child's time goes: what each stage took, and how full its engine was.

A subscriber of the recorder, for `nightshift-worker --profile` and for metrics.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.telemetry.recorder import Subscriber


@dataclass(slots=True)
class StageTotals:
    """What one stage took so far.

    `count` is how many batches (for QUEUE in vLLM: rows) went through it well, in how many
    `calls`; `seconds` are summed over threads, so those of a minute may be many minutes;
    `cpu_seconds` are those of the stage's own threads.
    """

    calls: int = 0
    count: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclass(slots=True)
class Occupancy:
    """How full the engine was while the child was at work.

    At work is a child that holds a batch or whose last claim brought one: from its first claim to
    its last commit, less the pauses in which it had nothing and none was admitted. Of these
    `seconds`, `fewer_seconds` are those with fewer rows in the engine than its `concurrency`,
    waiting in its own queue or running; of these in turn, `empty_seconds` had no row at all, and
    `dry_seconds` came after a claim that found nothing: the queue, not the child, left the engine
    hungry. `row_seconds` over `seconds` is the mean number of rows in the engine; `rows` went in.
    `no_work_seconds` are the pauses, outside of `seconds`.
    """

    concurrency: int = 0
    rows: int = 0
    seconds: float = 0.0
    fewer_seconds: float = 0.0
    empty_seconds: float = 0.0
    dry_seconds: float = 0.0
    row_seconds: float = 0.0
    no_work_seconds: float = 0.0


class Utilization(Subscriber):
    """The figures of one child, from all of its threads. The clock gives seconds."""

    def __init__(self, concurrency: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stages = {stage: StageTotals() for stage in Stage}
        self._engine = Occupancy(concurrency=concurrency)
        self._since = clock()
        self._rows = self._held = 0
        self._dry = True
        self._lock = threading.Lock()

    def stage_passed(
        self, stage: Stage, seconds: float, cpu_seconds: float = 0.0, count: int = 1
    ) -> None:
        """Adds a pass to the totals of its stage."""
        with self._lock:
            totals = self._stages[stage]
            totals.calls += 1
            totals.count += count
            totals.seconds += seconds
            totals.cpu_seconds += cpu_seconds
            totals.longest_seconds = max(totals.longest_seconds, seconds)

    def batches_claimed(self, batches: int) -> None:
        """The child holds more batches, or none was admitted."""
        with self._lock:
            self._advance()
            self._held += batches
            self._dry = batches == 0

    def batch_ended(self, outcome: str | None = None) -> None:
        """The child holds one batch less."""
        with self._lock:
            self._advance()
            self._held -= 1

    def rows_entered(self, rows: int = 1) -> None:
        """More rows are in the engine."""
        with self._lock:
            self._advance()
            self._rows += rows
            self._engine.rows += rows

    def rows_left(self, rows: int = 1) -> None:
        """Fewer rows are in the engine."""
        with self._lock:
            self._advance()
            self._rows -= rows

    @property
    def rows(self) -> int:
        """Rows in the engine now."""
        return self._rows

    def occupancy(self) -> Occupancy:
        """How full the engine was up to now."""
        with self._lock:
            self._advance()
            return replace(self._engine)

    def seconds(self) -> dict[str, float]:
        """What each stage took so far."""
        with self._lock:
            return {stage: totals.seconds for stage, totals in self._stages.items()}

    def figures(self) -> dict[str, Any]:
        """Everything so far, as it stands in a line of the profile's file."""
        with self._lock:
            stages = {stage.value: asdict(totals) for stage, totals in self._stages.items()}
        return {"stages": stages, "engine": asdict(self.occupancy())}

    def _advance(self) -> None:
        """Integrates over the time since the last change how many rows were in the engine."""
        now = self._clock()
        passed, self._since = now - self._since, now
        totals = self._engine
        if not self._held and self._dry:
            totals.no_work_seconds += passed
            return
        totals.seconds += passed
        totals.row_seconds += passed * self._rows
        if self._rows < totals.concurrency:
            totals.fewer_seconds += passed
            totals.empty_seconds += passed * (self._rows == 0)
            totals.dry_seconds += passed * self._dry
