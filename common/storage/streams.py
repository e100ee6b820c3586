"""Files as storage sees them, and open files: inputs with our own errors, and outputs that are counted
and hashed.
"""

import hashlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

from nightshift.common.failpoints import Moment, reached
from nightshift.common.storage.driver_errors import guard, writing

Content = Callable[[BinaryIO], object]
"""Writes the content of a file into the unseekable file that it is called with."""

Naming = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a whole file gets its name."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it is now: `size` in bytes; `fingerprint` is the etag, else the mtime in ns."""

    uri: str
    size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: size in bytes and SHA-256 in hexadecimal digits."""

    bytes: int
    checksum: str


class _Source(io.RawIOBase):
    """An open input whose errors are StorageUnavailable, whichever library reads it."""

    def __init__(self, raw: io.RawIOBase, uri: str) -> None:
        self._raw, self._uri = raw, uri

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with guard("read", self._uri):
            return self._raw.readinto(buffer) or 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with guard("read", self._uri):
            return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
            super().close()


def checked_reader(raw: io.RawIOBase, uri: str, buffer_bytes: int) -> io.BufferedReader:
    """A reader of a driver's open file whose errors are StorageUnavailable."""
    return io.BufferedReader(_Source(raw, uri), buffer_bytes)


class _Sink(io.RawIOBase):
    """An open output that counts and hashes the bytes that are written to it."""

    def __init__(self, raw: Any, uri: str) -> None:
        self._raw, self._uri = raw, uri
        self._hash, self._bytes = hashlib.sha256(), 0
        self.given_up = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        if self.given_up:
            # A buffer flushes the bytes that it still holds when it is collected.
            return total
        with writing(self._uri):
            while left:
                left = left[self._raw.write(left) :]
        self._hash.update(data)
        self._bytes += total
        return total

    def written(self) -> Written:
        return Written(self._bytes, self._hash.hexdigest())


def fill(raw: Any, uri: str, content: Content) -> Written:
    """Calls `content` with a file that writes to `raw`; returns how much was written."""
    sink = _Sink(raw, uri)
    try:
        buffered = io.BufferedWriter(sink, 1024 * 1024)
        content(buffered)
        reached(Moment.WRITING)
        # pyarrow may have closed the buffer, which flushes it.
        if not buffered.closed:
            buffered.flush()
    except BaseException:
        sink.given_up = True
        raise
    return sink.written()
