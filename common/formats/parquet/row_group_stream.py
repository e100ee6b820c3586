"""A row group that is too large for the cache, read piece by piece from its start to its end.

A row group can only be decoded from its start. Batches come in almost ascending order. So a reader
that stays open and continues where it stopped reads the file once, and not once for each batch.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Protocol

import pyarrow as pa

OpenBatches = Callable[[int, ExitStack], Iterator[pa.RecordBatch]]
"""Opens the row group at its start, for reading that many rows at a time; puts what must be closed
on the stack."""


class Shelf(Protocol):
    """A place that keeps pieces for a while after they were read."""

    def find(self, number: int) -> pa.Table | None:
        """The piece, if it is still kept."""

    def keep(self, number: int, piece: pa.Table) -> None:
        """Keeps a piece, if there is room."""


class RowGroupStream:
    """Pieces of `piece_rows` rows, by number, for many threads.

    One thread at a time reads, for all threads that wait: every piece that it passes goes to the
    threads that want the piece, and to the shelf. An earlier piece that the shelf lost costs a new
    start. An error that `is_damage` calls damage is kept, since reading again would meet the same
    damage.
    """

    def __init__(
        self,
        open_batches: OpenBatches,
        piece_rows: int,
        is_damage: Callable[[BaseException], bool],
    ) -> None:
        self.piece_rows = piece_rows
        self._open_batches, self._is_damage = open_batches, is_damage
        self._reading = threading.Lock()
        self._wanting = threading.Lock()
        self._wanted: dict[int, Future[pa.Table]] = {}
        self._stack = ExitStack()
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest: list[pa.RecordBatch] = []
        self._next = 0
        self._last: tuple[int, pa.Table] | None = None
        self._damage: tuple[int, BaseException] | None = None

    def piece(self, number: int, shelf: Shelf) -> pa.Table:
        """The rows from `number * piece_rows`; an error is raised for all threads that wait."""
        with self._wanting:
            own = self._wanted.setdefault(number, Future())
        while not own.done():
            with self._reading:
                if not own.done():
                    self._step(number, shelf)
        return own.result()

    def close(self) -> None:
        """Closes the file; a piece that is wanted later opens it again."""
        with self._reading:
            self._shut()

    def _step(self, number: int, shelf: Shelf) -> None:
        """Reads one piece on the way to `number`."""
        known = self._last[1] if self._last and self._last[0] == number else shelf.find(number)
        if known is not None:
            self._hand_out(number, known)
            return
        if self._damage is not None and number >= self._damage[0]:
            self._refuse(self._damage[1], from_piece=self._damage[0])
            return
        try:
            if self._batches is None or number < self._next:
                self._start_over()
            table = self._take()
        except BaseException as error:
            if self._is_damage(error):
                self._damage = (self._next, error)
                self._refuse(error, from_piece=self._next)
            else:
                self._refuse(error, from_piece=0)
            self._shut()
            return
        self._last = (self._next, table)
        self._next += 1
        shelf.keep(*self._last)
        self._hand_out(*self._last)

    def _start_over(self) -> None:
        self._shut()
        self._batches = self._open_batches(self.piece_rows, self._stack)

    def _shut(self) -> None:
        self._batches, self._rest, self._next, self._last = None, [], 0, None
        self._stack.close()

    def _take(self) -> pa.Table:
        """The next piece. Only the last piece of the row group is smaller; reading it closes the file."""
        assert self._batches is not None
        held, self._rest = self._rest, []
        rows = sum(batch.num_rows for batch in held)
        while rows < self.piece_rows:
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                self._stack.close()
                break
            held.append(batch)
            rows += batch.num_rows
        assert held, "a piece beyond the row group"
        if rows > self.piece_rows:
            last = held.pop()
            cut = last.num_rows - (rows - self.piece_rows)
            held, self._rest = [*held, last.slice(0, cut)], [last.slice(cut)]
        return pa.Table.from_batches(held)

    def _hand_out(self, number: int, table: pa.Table) -> None:
        with self._wanting:
            waiting = self._wanted.pop(number, None)
        if waiting is not None:
            waiting.set_result(table)

    def _refuse(self, error: BaseException, *, from_piece: int) -> None:
        with self._wanting:
            refused = [number for number in self._wanted if number >= from_piece]
            waiting: list[Future[Any]] = [self._wanted.pop(number) for number in refused]
        for one in waiting:
            one.set_exception(error)
