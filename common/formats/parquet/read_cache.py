"""Footers and decoded row groups that a child keeps of the files it reads, bounded in bytes, and the
streams of row groups that are too large to be kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeVar

import pyarrow as pa

MOST_STREAMS = 4
"""Row groups that are open at once: enough for two jobs that each read at a border of two."""

T = TypeVar("T")

OpenBatches = Callable[[int, ExitStack], Iterator[pa.RecordBatch]]
"""Opens the row group at its start, for reading that many rows at a time; puts what must be closed
on the stack."""


Admit = Callable[[str, int, Hashable, int], None]
"""Is told the file, its size, a row group of it and how many bytes this decodes to, as far as known;
raises what refuses the row group."""


class DamagedError(Exception):
    """A row group that cannot be decoded; only its own rows are bad."""


class ReadCache:
    """Footers and decoded row groups of recent batches, the oldest dropped first.

    Thread-safe; an entry that two threads want at the same time is loaded once. The cache never
    keeps more than `limit_bytes`, and has `held_bytes` now; a larger entry is returned and not
    kept. Row groups that are too large are read as streams, each of which also holds one piece and
    its buffers.

    With `admit`, nobody vouches for the files: a row group is decoded in pieces that are small even where
    many rows share a large text, and `admit` is called before and during this.
    """

    def __init__(self, limit_bytes: int, admit: Admit | None = None) -> None:
        self.limit_bytes, self.admit = limit_bytes, admit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[Any]] = {}
        self._streams: OrderedDict[Hashable, RowGroupStream] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable, load: Callable[[], T], size: Callable[[T], int]) -> T:
        """The entry, loaded if it is not kept; an error of `load` is raised for all that wait for it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                kept: T = self._kept[key][0]
                return kept
            loading = self._loading.get(key)
            if loading is None:
                own = self._loading[key] = Future()
        if loading is not None:
            shared: T = loading.result()
            return shared
        try:
            value = load()
            size_bytes = size(value)
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            own.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._keep(key, value, size_bytes)
        own.set_result(value)
        return value

    def find(self, key: Hashable) -> Any:
        """The entry; None if it is not kept."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: object, size_bytes: int) -> None:
        """Keeps an entry that was read on the way to another one."""
        with self._lock:
            self._keep(key, value, size_bytes)

    def stream(self, key: Hashable, make: Callable[[], "RowGroupStream"]) -> "RowGroupStream":
        """The open stream of a row group; closes the least recently used one above MOST_STREAMS."""
        with self._lock:
            if key not in self._streams:
                self._streams[key] = make()
            self._streams.move_to_end(key)
            found = self._streams[key]
            surplus = None
            if len(self._streams) > MOST_STREAMS:
                _, surplus = self._streams.popitem(last=False)
        if surplus is not None:
            surplus.close()
        return found

    def _keep(self, key: Hashable, value: object, size_bytes: int) -> None:
        if key in self._kept:
            self.held_bytes -= self._kept.pop(key)[1]
        if size_bytes > self.limit_bytes:
            return
        self._kept[key] = (value, size_bytes)
        self.held_bytes += size_bytes
        while self.held_bytes > self.limit_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self.held_bytes -= dropped


class RowGroupStream:
    """A row group that is too large for the cache, read from its start to its end: pieces of
    `piece_rows` rows, by number, for many threads.

    A row group can only be decoded from its start. Batches come in almost ascending order. So a reader
    that stays open and continues where it stopped reads the file once, and not once for each batch.

    One thread at a time reads, for all threads that wait: every piece that it passes goes to the
    threads that want the piece, and to `cache`, under `key`, its size and its number. An earlier piece
    that the cache lost costs a new start. A DamagedError is kept, since reading again would meet the
    same damage.
    """

    def __init__(
        self,
        open_batches: OpenBatches,
        piece_rows: int,
        cache: "ReadCache",
        key: tuple[object, ...],
    ) -> None:
        self.piece_rows = piece_rows
        # An earlier stream may have left pieces of another size in the cache.
        self._open_batches, self._cache, self._key = open_batches, cache, (*key, piece_rows)
        self._reading = threading.Lock()
        self._wanting = threading.Lock()
        self._wanted: dict[int, Future[pa.Table]] = {}
        self._stack = ExitStack()
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest: list[pa.RecordBatch] = []
        self._next = 0
        self._last: tuple[int, pa.Table] | None = None
        self._damage: tuple[int, BaseException] | None = None

    def piece(self, number: int) -> pa.Table:
        """The rows from `number * piece_rows`; an error is raised for all threads that wait."""
        with self._wanting:
            own = self._wanted.setdefault(number, Future())
        while not own.done():
            with self._reading:
                if not own.done():
                    self._step(number)
        return own.result()

    def close(self) -> None:
        """Closes the file; a piece that is wanted later opens it again."""
        with self._reading:
            self._shut()

    def _step(self, number: int) -> None:
        """Reads one piece on the way to `number`."""
        known = self._last[1] if self._last and self._last[0] == number else None
        if known is None:
            known = self._cache.find((*self._key, number))
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
            if isinstance(error, DamagedError):
                self._damage = (self._next, error)
                self._refuse(error, from_piece=self._next)
            else:
                self._refuse(error, from_piece=0)
            self._shut()
            return
        self._last = (self._next, table)
        self._next += 1
        self._cache.put((*self._key, self._last[0]), table, table.nbytes)
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
