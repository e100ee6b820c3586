"""Time per stage and engine occupancy of a child, as a subscriber of the recorder, for metrics."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from nightshift.worker.telemetry.recorder import Subscriber
from nightshift.worker.telemetry.stage import Stage


@dataclass(slots=True)
class Occupancy:
    """How full the engine was while the child was at work.

    At work is a child that holds a batch or whose last claim brought one: from its first claim to
    its last commit, less the pauses in which it had nothing and none was admitted. Of these
    `seconds`, `fewer_seconds` are those with fewer rows in the engine than its `concurrency`,
    waiting in its own queue or running; of these in turn, `empty_seconds` had no row at all.
    `no_work_seconds` are the pauses, outside of `seconds`.
    """

    concurrency: int = 0
    seconds: float = 0.0
    fewer_seconds: float = 0.0
    empty_seconds: float = 0.0
    no_work_seconds: float = 0.0


class Utilization(Subscriber):
    """The figures of one child, from all of its threads. The clock gives seconds."""

    def __init__(self, concurrency: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._stages = dict.fromkeys(Stage, 0.0)
        self._engine = Occupancy(concurrency=concurrency)
        self._since = clock()
        self._rows = self._held = 0
        self._dry = True
        self._lock = threading.Lock()

    def stage_passed(self, stage: Stage, seconds: float) -> None:
        """Adds a pass to the seconds of its stage."""
        with self._lock:
            self._stages[stage] += seconds

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
        """What each stage took so far, summed over threads."""
        with self._lock:
            return {str(stage): seconds for stage, seconds in self._stages.items()}

    def _advance(self) -> None:
        """Count the time since the last change by how full the engine was."""
        now = self._clock()
        passed, self._since = now - self._since, now
        totals = self._engine
        if not self._held and self._dry:
            totals.no_work_seconds += passed
            return
        totals.seconds += passed
        if self._rows < totals.concurrency:
            totals.fewer_seconds += passed
            totals.empty_seconds += passed * (self._rows == 0)
