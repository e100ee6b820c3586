"""Footers and decoded row groups that a child keeps of the files it reads, bounded in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from nightshift.common.formats.parquet.row_group_stream import RowGroupStream

MOST_STREAMS = 4
"""Row groups that are open at once: enough for two jobs that each read at a border of two."""

T = TypeVar("T")


class ReadCache:
    """Footers and decoded row groups of recent batches, the oldest dropped first.

    Thread-safe; an entry that two threads want at the same time is loaded once. The cache never
    keeps more than `limit_bytes`; a larger entry is returned and not kept. Row groups that are too
    large are read as streams, each of which also holds one piece and its buffers.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[Any]] = {}
        self._streams: OrderedDict[Hashable, RowGroupStream] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """The size of all entries."""
        return self._bytes

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

    def stream(self, key: Hashable, make: Callable[[], RowGroupStream]) -> RowGroupStream:
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
            self._bytes -= self._kept.pop(key)[1]
        if size_bytes > self.limit_bytes:
            return
        self._kept[key] = (value, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self.limit_bytes:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= dropped
