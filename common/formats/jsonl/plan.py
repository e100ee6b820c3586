"""JSONL planned: one pass over a file says how many rows it has, and the byte where each batch of them ends."""

import codecs
from array import array
from collections.abc import Iterable
from io import BufferedReader
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from nightshift.common import storage
from nightshift.common.formats import reading, streams
from nightshift.common.formats.format import Scan
from nightshift.common.formats.jsonl.lines import content_start, is_blank
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo

CHUNK_BYTES = 1024 * 1024
"""Size of what is read at once. Threads that read ahead took twice the CPU, and no less time (measured)."""

_NEWLINE, _SPACE = 0x0A, 0x20


def scan_lines(
    uri: str, batch_rows: int, limit: int | None = None, origin: str | None = None
) -> Scan:
    """Count the rows of a JSONL file, at most `limit`, and return where each batch ends. BadInput, which names
    `origin`, for a line that is too long for the plan.

    A batch ends right after its last row; blank lines belong to the front of the next batch.
    """
    with storage.open_input(uri, sequential=True) as handle:
        start = content_start(handle)
        rows = _RowCounter(start, batch_rows, 2**63 if limit is None else limit)
        return _scan(handle, rows, origin or uri)


class RowCount:
    """Counts rows of JSON lines that come in pieces."""

    def __init__(self) -> None:
        self._counter = _RowCounter(0, 2**62, 2**63 - 1)

    def add(self, piece: bytes) -> int:
        """The rows that have ended up to the end of this piece."""
        self._counter.take(piece, len(piece))
        return self._counter.rows


def row_ends(handle: BinaryIO, start: int, rows: int) -> "array[int]":
    """The byte after each of the next `rows` rows of an open file, from the byte `start` on."""
    handle.seek(start)
    return _scan(handle, _RowCounter(start, 1, rows)).ends


def _scan(handle: BinaryIO, rows: "_RowCounter", name: str = "") -> Scan:
    buffer, bounds, open_bytes = bytearray(CHUNK_BYTES), reading.current(), 0
    while rows.left and (size := handle.readinto(buffer)):  # type: ignore[attr-defined]
        bounds.check()
        if bounds.most_line_bytes is not None:
            first = buffer.find(b"\n", 0, size)
            bounds.check_line(name, open_bytes + (size if first < 0 else first))
            open_bytes = open_bytes + size if first < 0 else size - 1 - buffer.rfind(b"\n", 0, size)
        rows.take(buffer, size)
    return rows.scan()


class _RowCounter:
    """Counts the rows of a file, chunk by chunk."""

    def __init__(self, start: int, batch_rows: int, most: int) -> None:
        self._start, self._batch_rows, self._most = start, batch_rows, most
        self._rows, self._at, self._last_end = 0, start, start
        self._is_blank = True  # the line that is open, so far
        self._ends = array("q")

    @property
    def rows(self) -> int:
        """Rows that have ended so far."""
        return self._rows

    @property
    def left(self) -> int:
        """Rows that are left up to the limit."""
        return self._most - self._rows

    def take(self, piece: bytes | bytearray, size: int) -> None:
        """Adds the next bytes of the file, the first `size` of `piece`."""
        found = np.frombuffer(piece, np.uint8, size)
        stops = np.flatnonzero(found == _NEWLINE)
        starts = np.concatenate([[0], stops + 1])
        # Most lines begin with a brace. Only one that begins with what may be white space is looked at.
        doubtful = np.flatnonzero(found[starts[:-1]] <= _SPACE).tolist()
        blank = [at for at in doubtful if not piece[starts[at] : stops[at]].strip()]
        if not self._is_blank and blank[:1] == [0]:
            blank = blank[1:]
        is_blank = not piece[starts[-1] : size].strip()
        self._is_blank = is_blank and (self._is_blank or len(stops) > 0)
        self._end_rows(np.delete(stops, blank) + self._at + 1)
        self._at += size

    def _end_rows(self, ends: NDArray[np.int64]) -> None:
        """Takes the bytes after the next rows."""
        taken = min(len(ends), self.left)
        if taken:
            first = self._batch_rows - self._rows % self._batch_rows
            self._ends.frombytes(ends[first - 1 : taken : self._batch_rows].tobytes())
            self._last_end = int(ends[taken - 1])
            self._rows += taken

    def scan(self) -> Scan:
        """The scan of the whole file, whose last row needs no newline."""
        if self.left and not self._is_blank:
            self._rows, self._last_end = self._rows + 1, self._at
            if self._rows % self._batch_rows == 0:
                self._ends.append(self._at)
        if self._rows % self._batch_rows:
            self._ends.append(self._last_end)
        return Scan(self._rows, self._start, self._ends)


def cut_lines(
    uri: str, scan: Scan, batch_rows: int, batch_bytes: int
) -> "tuple[Scan, array[int] | None]":
    """The scan with its larger batches cut to `batch_bytes`, and the cuts; None where none is larger.

    Only the batches that are larger are read again.
    """
    starts = np.concatenate([[scan.start], scan.ends[:-1]]).astype(np.int64)
    if not scan.rows or int(np.subtract(scan.ends, starts).max()) <= batch_bytes:
        return scan, None
    ends, cuts, row = array("q"), array("q"), 0
    with storage.open_input(uri) as handle:
        for start, end in zip(starts.tolist(), scan.ends, strict=True):
            rows = min(batch_rows, scan.rows - row)
            if end - start > batch_bytes:
                places = row_ends(handle, start, rows)
                for taken, place in _fitting(np.frombuffer(places, np.int64), start, batch_bytes):
                    ends.append(place)
                    cuts.append(row + taken)
            else:
                ends.append(end)
                cuts.append(row + rows)
            row += rows
    return Scan(scan.rows, scan.start, ends), cuts


def _fitting(
    places: "np.ndarray[tuple[int], np.dtype[np.int64]]", start: int, batch_bytes: int
) -> Iterable[tuple[int, int]]:
    """(rows so far, end) of each piece of at most `batch_bytes` bytes, or of one row."""
    taken = 0
    while taken < len(places):
        taken = max(taken + 1, int(places.searchsorted(start + batch_bytes, side="right")))
        start = int(places[taken - 1])
        yield taken, start


def copy(info: FileInfo, _spec_input: InputSpec, limit: int | None, sink: BinaryIO) -> None:
    """Writes the plain lines of a compressed file, or of its first rows. Raises BadInput, StorageUnavailable."""
    bounds = reading.current()
    with streams.open_stream(info.uri, counted=True) as stream:
        if limit is None:
            counter = RowCount() if bounds.counts_rows else None
            while chunk := stream.read(streams.CHUNK_BYTES):
                if counter is not None:
                    bounds.check_rows(counter.add(chunk))
                sink.write(chunk)
            return
        handle = BufferedReader(stream, streams.CHUNK_BYTES)
        piece = handle.readline(streams.CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
        left, blank_line = limit, True
        while left and piece:
            sink.write(piece)
            blank_line = blank_line and is_blank(piece)
            if piece.endswith(b"\n"):
                left -= not blank_line
                blank_line = True
                bounds.check_rows(limit - left)
            piece = handle.readline(streams.CHUNK_BYTES)
