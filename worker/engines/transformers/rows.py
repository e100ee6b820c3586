"""Rows of several batches that wait for a forward pass together."""

import threading
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.engines.protocol import Outcome, Work
from nightshift.worker.engines.transformers.models import Texts


@dataclass(slots=True, eq=False)
class Batch:
    """One batch in the engine; `future` is done once no row is left."""

    work: Work
    future: "Future[None]" = field(default_factory=Future)
    _left: int = 0
    _over: bool = False
    _entered_at: float = 0.0
    _began_at: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._left = len(self.work.requests)
        self._entered_at = self.work.recorder.clock()
        self.work.recorder.rows_entered(self._left)
        self.leave(0)

    def began(self) -> None:
        """The first pass with a row of this batch begins."""
        if self._began_at is None:
            self._began_at = self.work.recorder.clock()
            self.work.recorder.stage_passed(Stage.QUEUE, self._began_at - self._entered_at)

    def end(self, position: int, outcome: Outcome) -> None:
        """A row is finished. Its outcome is dropped when the work was stopped."""
        if not self.work.stopped.is_set():
            self.work.emit(position, outcome)
        self.leave(1)

    def leave(self, rows: int) -> None:
        """So many rows left the engine."""
        self.work.recorder.rows_left(rows)
        with self._lock:
            self._left -= rows
            if self._left or self._over:
                return
            self._over = True
        if self._began_at is not None:
            self.work.recorder.stage_passed(
                Stage.INFER, self.work.recorder.clock() - self._began_at
            )
        self.future.set_result(None)

    def fail(self, error: BaseException | None) -> None:
        """No further row is computed: the engine died, or was closed (no error)."""
        with self._lock:
            if self._over:
                return
            self._over = True
        if error is None:
            self.future.cancel()
        else:
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Row:
    """One request; `longest` is the length of its longest sequence, `tokens` those of all."""

    batch: Batch
    position: int
    texts: Texts
    longest: int
    tokens: int

    @property
    def row_index(self) -> int:
        """The row's place in the dataset."""
        return self.batch.work.requests[self.position].row_index


class RowQueue:
    """Rows in the order of their arrival, sorted by length within `window` rows, longest first:
    texts of about the same length need little padding.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._waiting: deque[Row] = deque()
        self._sorted: list[Row] = []
        self._changed = threading.Condition()
        self._closed = False

    def add(self, rows: Iterable[Row]) -> bool:
        """Adds rows; False when the queue is closed."""
        with self._changed:
            if not self._closed:
                self._waiting.extend(rows)
                self._changed.notify()
            return not self._closed

    def take(self, count: int) -> list[Row]:
        """The next rows, at most `count`. Waits for a row; empty once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._sorted or self._waiting)
            if not self._sorted:
                some = range(min(self._window, len(self._waiting)))
                self._sorted = [self._waiting.popleft() for _ in some]
                self._sorted.sort(key=lambda row: row.longest)
            taken, self._sorted = self._sorted[-count:], self._sorted[:-count]
            return taken[::-1]

    def drop(self, batch: Batch, withdrawn: Collection[int] | None = None) -> int:
        """Removes the waiting rows of a batch, or only the ones that were `withdrawn` (by row_index); returns
        how many.
        """

        def stays(row: Row) -> bool:
            return row.batch is not batch or not (withdrawn is None or row.row_index in withdrawn)

        with self._changed:
            before = len(self._waiting) + len(self._sorted)
            self._waiting = deque(row for row in self._waiting if stays(row))
            self._sorted = [row for row in self._sorted if stays(row)]
            return before - len(self._waiting) - len(self._sorted)

    def close(self) -> list[Row]:
        """Closes the queue and returns the rows that waited."""
        with self._changed:
            self._closed = True
            rest = [*self._sorted, *self._waiting]
            self._waiting.clear()
            self._sorted = []
            self._changed.notify_all()
            return rest
