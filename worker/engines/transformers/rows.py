"""Rows of several batches that wait for a forward pass together."""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from nightshift.worker.engines.protocol import Outcome, Request, Work
from nightshift.worker.engines.transformers.tokens import Ids
from nightshift.worker.telemetry.stage import Stage

Texts = tuple[str, ...]
"""The text of a row, or its pair of texts."""


def texts_of(request: Request) -> Texts:
    """The text of a request, or its pair of texts."""
    one, other = request.text, request.text_pair
    return (one,) if other is None else (one, other)


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

    def end(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Rows are finished. Their outcomes are dropped when the work was stopped."""
        if not self.work.stopped.is_set():
            self.work.emit_all(positions, outcomes)
        self.leave(len(positions))

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
    """One request, with the sequences that its texts become."""

    batch: Batch
    position: int
    sequences: tuple[Ids, ...]
    longest: int = field(init=False)

    def __post_init__(self) -> None:
        self.longest = max(len(ids) for ids, *_ in self.sequences)

    @property
    def texts(self) -> Texts:
        """The row's text, or its pair of texts."""
        return texts_of(self.batch.work.requests[self.position])

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(len(ids) for ids, *_ in self.sequences)

    @property
    def row_index(self) -> int:
        """The row's place in the dataset."""
        return self.batch.work.requests[self.position].row_index


def padded(rows: Sequence[Row]) -> int:
    """Tokens that a pass of these rows computes, padding included."""
    return len(rows) * len(rows[0].sequences) * max(1, *(row.longest for row in rows))


class RowQueue:
    """Rows in the order of their arrival, and of these the next ones sorted by length, longest first: texts
    of about the same length need little padding.

    A window of at most `most_rows` rows, or of as many as `most_passes` passes take, is sorted together. Rows
    that come while it has room join it, and all of its rows run before any that came later. So no row waits for
    more rows than that, however short it is.
    """

    def __init__(self, most_rows: int, most_passes: int) -> None:
        self._most_rows, self._most_passes = most_rows, most_passes
        self._waiting: deque[Row] = deque()
        self._sorted: list[Row] = []
        self._joined, self._joined_tokens = 0, 0
        self._changed = threading.Condition()
        self._closed = False

    def add(self, rows: Iterable[Row]) -> bool:
        """Adds rows; False when the queue is closed."""
        with self._changed:
            if not self._closed:
                self._waiting.extend(rows)
                self._changed.notify()
            return not self._closed

    def take(self, tokens: int, *, wait: bool = True) -> list[Row]:
        """The next rows, as many as make a pass of at most so many tokens, padding included, and at least
        one. Waits for a row where it may; empty where there is none, or once the queue is closed.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._closed or self._sorted or self._waiting)
            self._join(self._most_passes * tokens)
            if not self._sorted:
                return []
            longest = self._sorted[-1]
            count = max(1, tokens // padded([longest]))
            taken, self._sorted = self._sorted[-count:], self._sorted[:-count]
            return taken[::-1]

    def _join(self, most_tokens: int) -> None:
        if not self._sorted:
            self._joined = self._joined_tokens = 0
        joined = self._joined
        while (
            self._waiting and self._joined < self._most_rows and self._joined_tokens < most_tokens
        ):
            row = self._waiting.popleft()
            self._joined += 1
            self._joined_tokens += padded([row])
            self._sorted.append(row)
        if self._joined > joined:
            self._sorted.sort(key=lambda row: row.longest)

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
