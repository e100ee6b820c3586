"""One pass over a JSONL file: how many rows it has, and the byte where each batch of them ends.

Numpy marks the newlines of a chunk, or the newlines are searched for where lines are long. Only a
line that begins with what may be white space is examined by itself.

A scan without marks, by np.flatnonzero over everything, is a third of this code. It took 1.1 to 1.6
times the CPU for lines of 40 to 1000 bytes (measured).
"""

from array import array
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nightshift.common import storage
from nightshift.common.formats.jsonl.lines import content_start
from nightshift.producer.submit.planning import reading
from nightshift.producer.submit.planning.half_characters import HalfCharacters

CHUNK_BYTES = 1024 * 1024
"""Size of what is read at once; two masks have the same size. Threads that read ahead took twice the
CPU, and no less time (measured)."""

LONG_BYTES = 1024
"""Newlines are searched for where lines have this size on average, and marked where lines are
shorter (measured)."""

_NEWLINE, _SPACE, _FILLER = 0x0A, 0x20, ord("{")

_BLOCK = 1024
"""Bytes whose newlines are counted together; at most 8 x 255, or the sums would overflow."""

_WORD = 64
"""Bytes of a block that are counted together to find the end of a batch."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a JSONL file: the byte of the first line, and the byte after each batch."""

    rows: int
    start: int
    ends: "array[int]"


def scan_lines(
    uri: str,
    batch_rows: int,
    limit: int | None = None,
    half: HalfCharacters | None = None,
    origin: str | None = None,
) -> Scan:
    """Counts the rows of a JSONL file, at most `limit`, and notes where each batch ends. `half` sees
    every byte in passing. BadInput, which names `origin`, for a line that is too long for the plan.

    A batch ends right after its last row; blank lines belong to the front of the next batch.
    """
    with storage.open_input(uri, sequential=True) as handle:
        start = content_start(handle)
        rows = _RowCounter(start, batch_rows, 2**63 if limit is None else limit)
        return _scan(handle, rows, half, origin or uri)


class RowCount:
    """Counts rows of JSON lines that come in pieces of at most CHUNK_BYTES."""

    def __init__(self) -> None:
        self._counter = _RowCounter(0, 2**62, 2**63 - 1)
        self._buffer = _buffer()

    def add(self, piece: bytes) -> int:
        """The rows that have ended up to the end of this piece."""
        self._buffer[: len(piece)] = piece
        self._counter.take(self._buffer, len(piece))
        return self._counter.rows


def row_ends(handle: BinaryIO, start: int, rows: int) -> "array[int]":
    """The byte after each of the next `rows` rows of an open file, from the byte `start` on."""
    handle.seek(start)
    return _scan(handle, _RowCounter(start, 1, rows)).ends


def _scan(
    handle: BinaryIO, rows: "_RowCounter", half: HalfCharacters | None = None, name: str = ""
) -> Scan:
    buffer, bounds, open_bytes = _buffer(), reading.current(), 0
    room = memoryview(buffer)[:CHUNK_BYTES]
    while rows.left and (size := handle.readinto(room)):  # type: ignore[attr-defined]
        bounds.check()
        if bounds.most_line_bytes is not None:
            first = buffer.find(b"\n", 0, size)
            bounds.check_line(name, open_bytes + (size if first < 0 else first))
            open_bytes = open_bytes + size if first < 0 else size - 1 - buffer.rfind(b"\n", 0, size)
        if half is not None:
            half.take(buffer, size)
        rows.take(buffer, size)
    return rows.scan()


def _buffer() -> bytearray:
    return bytearray(-(-CHUNK_BYTES // _BLOCK) * _BLOCK)


class _Chunk:
    """The chunk that was read last, with a mark on each newline that ends a row."""

    def __init__(self) -> None:
        capacity = -(-CHUNK_BYTES // _BLOCK) * _BLOCK
        self._buffer = bytearray()
        self._bytes = np.zeros(0, np.uint8)
        self._marks = np.zeros(capacity, np.bool_)
        self._scratch = np.zeros(capacity, np.uint8)
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._totals: NDArray[np.int64] = np.zeros(1, np.int64)
        self._found: NDArray[np.int64] | None = None
        self.size = 0

    def load(self, buffer: bytearray, size: int) -> None:
        """Takes the next chunk: marks and counts the newlines, but not of blank lines in this chunk."""
        is_long = self.size >= LONG_BYTES * max(1, self.rows) and self.size > 0
        self._buffer, self._bytes, self.size = buffer, np.frombuffer(buffer, np.uint8), size
        if is_long:
            self._found = self._search()
            return
        self._found = None
        # The rest of the last block holds what is neither newline nor white space.
        self._bytes[size:] = _FILLER
        np.equal(self._bytes, _NEWLINE, out=self._marks)
        if self._may_have_blank_lines():
            self._unmark_blank_lines()
        self._count()

    def _search(self) -> NDArray[np.int64]:
        """The places of the newlines; searching is cheaper than marking where lines are long."""
        places, at = [], -1
        while (at := self._buffer.find(b"\n", at + 1, self.size)) >= 0:
            places.append(at)
        found = np.array(places, np.int64)
        doubtful = np.flatnonzero(self._bytes[found[:-1] + 1] <= _SPACE)
        blank = [
            at + 1
            for at in doubtful.tolist()
            if self._is_blank(int(found[at]) + 1, int(found[at + 1]))
        ]
        return np.delete(found, blank) if blank else found

    def _may_have_blank_lines(self) -> bool:
        """False where no newline stands before white space; takes three passes.

        The smallest value of max(10 - byte, next byte) tells it: 10 - byte is 0 for a newline, and
        above 32 for every other byte but control characters and bytes above 233, which no UTF-8
        has before white space.
        """
        np.subtract(_NEWLINE, self._bytes, out=self._scratch)
        np.maximum(self._scratch[:-1], self._bytes[1:], out=self._scratch[:-1])
        self._scratch[-1] = _FILLER
        return bool(self._scratch.min() <= _SPACE)

    def _unmark_blank_lines(self) -> None:
        doubtful = self._marks[:-1] & (self._bytes[1:] <= _SPACE)
        for before in np.flatnonzero(doubtful).tolist():
            end = self._buffer.find(b"\n", before + 1, self.size)
            if end >= 0 and self._is_blank(before + 1, end):
                self._marks[end] = False

    def _count(self) -> None:
        """Adds eight marks at once, as the bytes of a word: 128 words of a block add up to 128."""
        words = self._marks.view(np.uint64).reshape(-1, _BLOCK // 8)
        sums = words.sum(axis=1).view(np.uint8).reshape(-1, 8)
        self._counts = sums.sum(axis=1, dtype=np.int64)
        self._totals = self._counts.cumsum()

    def _is_blank(self, start: int, stop: int) -> bool:
        if start == stop:
            return True
        return self._buffer[start] <= _SPACE and self._buffer[start:stop].isspace()

    def connect(self, is_blank: bool) -> bool:
        """Continues the line that the chunk before left open; `is_blank` says whether it was blank.

        Returns whether the line that is open at the end of this chunk is blank so far.
        """
        first = self._buffer.find(b"\n", 0, self.size)
        if first < 0:
            return is_blank and self._is_blank(0, self.size)
        if is_blank and self._is_blank(0, first):
            self._unmark_first(first)
        return self._is_blank(self._buffer.rfind(b"\n", 0, self.size) + 1, self.size)

    def _unmark_first(self, first: int) -> None:
        if self._found is not None:
            self._found = self._found[1:]
            return
        self._marks[first] = False
        self._count()

    @property
    def rows(self) -> int:
        """Rows that end in this chunk."""
        return int(self._totals[-1]) if self._found is None else len(self._found)

    def ends(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The byte after each of these rows; the first row of this chunk has the number 1."""
        if self._found is not None:
            return self._found[numbers - 1] + 1
        if len(numbers) * _BLOCK > 2 * len(self._marks):
            return np.asarray(np.flatnonzero(self._marks)[numbers - 1] + 1)
        blocks = self._totals.searchsorted(numbers)
        marks = self._marks.reshape(-1, _BLOCK)[blocks]
        counts = np.bitwise_count(np.packbits(marks, axis=1).view(np.uint64))
        word, nth = _group_of_nth(counts, numbers - (self._totals - self._counts)[blocks])
        bits = marks.reshape(len(marks), -1, _WORD)[np.arange(len(marks)), word]
        bit, _ = _group_of_nth(bits, nth)
        return np.asarray(blocks * _BLOCK + word * _WORD + bit + 1)


def _group_of_nth(
    counts: NDArray[Any], nth: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row of `counts`: the column in which its nth falls, and the place within it."""
    totals = counts.cumsum(axis=1, dtype=np.int64)
    column = (totals < nth[:, None]).sum(axis=1)
    each = np.arange(len(counts))
    return column, nth - (totals[each, column] - counts[each, column])


class _RowCounter:
    """Counts the rows of a file, chunk by chunk."""

    def __init__(self, start: int, batch_rows: int, most: int) -> None:
        self._start, self._batch_rows, self._most = start, batch_rows, most
        self._rows, self._at, self._last_end = 0, start, start
        self._is_blank = True
        self._chunk = _Chunk()
        self._ends = array("q")

    @property
    def rows(self) -> int:
        """Rows that have ended so far."""
        return self._rows

    @property
    def left(self) -> int:
        """Rows that are left up to the limit."""
        return self._most - self._rows

    def take(self, buffer: bytearray, size: int) -> None:
        """Adds the next bytes of the file, the first `size` of `buffer`."""
        chunk = self._chunk
        chunk.load(buffer, size)
        self._is_blank = chunk.connect(self._is_blank)
        taken = min(chunk.rows, self.left)
        if taken:
            room = self._batch_rows - self._rows % self._batch_rows
            full = np.arange(room, taken + 1, self._batch_rows, dtype=np.int64)
            ends = chunk.ends(np.append(full, taken)) + self._at
            self._ends.frombytes(ends[:-1].tobytes())
            self._last_end = int(ends[-1])
            self._rows += taken
        self._at += size

    def scan(self) -> Scan:
        """The scan of the whole file, whose last row needs no newline."""
        if self.left and not self._is_blank:
            self._rows, self._last_end = self._rows + 1, self._at
            if self._rows % self._batch_rows == 0:
                self._ends.append(self._at)
        if self._rows % self._batch_rows:
            self._ends.append(self._last_end)
        return Scan(self._rows, self._start, self._ends)
