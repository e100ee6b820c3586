"""Files of lines and records as streams from their front, unpacked and within the bounds of a plan."""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.formats import reading, source_files, unpacking
from nightshift.common.formats.csv.records import BLOCK_BYTES
from nightshift.common.formats.jsonl.lines import content_start
from nightshift.common.public_text import marked, private

CHUNK_BYTES = 2**20


def lines(uri: str, most_bytes: int | None = None) -> Iterator[bytes]:
    """The lines of a file with their ends, decompressed, without a byte order mark. Of a line with more
    than `most_bytes` come its first bytes, one more than that. Without it a line that is too long for the
    plan is refused.

    Raises BadInput for what is cut off or damaged, StorageUnavailable.
    """
    bounds = reading.current()
    if most_bytes is None and bounds.most_line_bytes is not None:
        for line in lines(uri, bounds.most_line_bytes):
            bounds.check_line(uri, len(line))
            yield line
        return
    if source_files.compression(uri) is None:
        with storage.open_input(uri, sequential=True) as handle:
            content_start(handle)
            yield from _bounded(handle, most_bytes)
        return
    with content_errors(uri), open_stream(uri) as stream:
        for number, line in enumerate(_bounded(BufferedReader(stream, CHUNK_BYTES), most_bytes)):
            yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _bounded(handle: BinaryIO, most_bytes: int | None) -> Iterator[bytes]:
    if most_bytes is None:
        yield from handle
        return
    while line := handle.readline(most_bytes + 1):
        yield line
        rest = line if len(line) > most_bytes else b""
        while rest and not rest.endswith(b"\n"):
            rest = handle.readline(CHUNK_BYTES)


@contextmanager
def open_stream(uri: str, *, counted: bool = False) -> Iterator[Any]:
    """The decompressed bytes of a file, from their front, within the bounds of the plan; `counted` are
    those that become a copy.
    """
    codec = source_files.compression(uri)
    with storage.open_input(uri, sequential=True) as raw:
        if not raw.peek(1):
            yield pa.BufferReader(b"")
        elif codec is None:
            yield _Bounded(pa.PythonFile(raw, mode="r"), uri, None, counted=counted)
        else:
            size = raw.seek(0, io.SEEK_END)
            raw.seek(0)
            with unpacking.opened(raw, codec, uri) as stream:
                yield _Bounded(stream, uri, size, counted=counted)


class _Bounded(io.RawIOBase):
    """A stream that is held to the bounds of its plan; `size` is that of the compressed file."""

    def __init__(self, stream: Any, uri: str, size: int | None, *, counted: bool) -> None:
        self._stream, self._uri, self._size, self._counted = stream, uri, size, counted
        self._unpacked, self._bounds = 0, reading.current()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._came(self._stream.readinto(buffer))

    def read_buffer(self, size: int) -> pa.Buffer:
        """What `read` gives, without a copy, as files of Arrow have it."""
        buffer = self._stream.read_buffer(size)
        self._came(buffer.size)
        return buffer

    def _came(self, count: int) -> int:
        self._bounds.check()
        self._unpacked += count
        if self._size is not None:
            self._bounds.check_ratio(self._uri, self._size, self._unpacked)
        if self._counted:
            self._bounds.add_bytes(count)
        return count


@contextmanager
def content_errors(uri: str) -> Iterator[None]:
    """Errors of Arrow become BadInput: they are about the content, since storage raises our own."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(f"{private(uri)} vanished while it was read: submit again") from error
    except MemoryError as error:
        raise StorageUnavailable(f"{private(uri)}: not enough memory to convert it") from error
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"{private(uri)} is no CSV in UTF-8 with records of at most {BLOCK_BYTES >> 20} MiB: {marked(error)}"
        ) from error
    except (pa.ArrowException, OSError) as error:
        why = ""
        if source_files.compression(uri) == "zstd":
            with storage.open_input(uri, sequential=True) as raw:
                why = unpacking.zstd_fault(raw)
        raise BadInput(
            f"{private(uri)} {why or f'is damaged: {marked(error)}; copy it again'}"
        ) from error
