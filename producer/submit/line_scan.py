"""One pass over a JSONL file: how many rows it has, and the byte where each batch of them ends.

Numpy marks the newlines of a chunk, or searches for them where lines are long, and only a line
that begins with what may be white space is looked at by itself.
"""

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.common import storage
from nightshift.common.formats.jsonl.lines import content_start

CHUNK_BYTES = 1024 * 1024
"""Read and looked at together, with two masks of the same size. Threads that read ahead or look
aside took twice the CPU, and no less time (measured)."""

LONG_BYTES = 1024
"""Lines of this size and more on average are searched for, shorter ones are marked (measured)."""

_NEWLINE, _SPACE, _FILLER = 0x0A, 0x20, ord("{")

_BLOCK = 1024
"""Bytes whose newlines are counted together; at most 8 x 255, or the sums would overflow."""

_WORD = 64
"""Bytes of a block that are looked at together for the end of a batch."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a JSONL file: the byte of the first line, and the byte after each batch."""

    rows: int
    start: int
    ends: "array[int]"


def scan_lines(uri: str, batch_rows: int, limit: int | None = None) -> Scan:
    """Counts the rows of a JSONL file, at most `limit`, and notes where each batch ends.

    A batch ends right after its last row; blank lines are passed over at the front of the next.
    """
    with storage.open_input(uri, sequential=True) as handle:
        start = content_start(handle)
        rows = _Rows(start, batch_rows, 2**63 if limit is None else limit)
        held = bytearray(-(-CHUNK_BYTES // _BLOCK) * _BLOCK)
        room = memoryview(held)[:CHUNK_BYTES]
        while rows.left and (size := handle.readinto(room)):
            rows.take(held, size)
    return rows.scan()


class _Chunk:
    """The chunk that is looked at, with a mark on each newline that ends a row."""

    def __init__(self) -> None:
        capacity = -(-CHUNK_BYTES // _BLOCK) * _BLOCK
        self._held = bytearray()
        self._bytes = np.zeros(0, np.uint8)
        self._marks = np.zeros(capacity, np.bool_)
        self._spare = np.zeros(capacity, np.uint8)
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._upto: NDArray[np.int64] = np.zeros(1, np.int64)
        self._few: NDArray[np.int64] | None = None
        self.size = 0

    def look(self, held: bytearray, size: int) -> None:
        """Marks and counts the newlines, without those of blank lines that begin in this chunk."""
        is_long = self.size >= LONG_BYTES * max(1, self.rows) and self.size > 0
        self._held, self._bytes, self.size = held, np.frombuffer(held, np.uint8), size
        if is_long:
            self._few = self._search()
            return
        self._few = None
        # Filled up to whole blocks with what is neither newline nor white space.
        self._bytes[size:] = _FILLER
        np.equal(self._bytes, _NEWLINE, out=self._marks)
        if self._may_have_blank_lines():
            self._forget_blank_lines()
        self._count()

    def _search(self) -> NDArray[np.int64]:
        """The newlines themselves, which is cheaper where lines are long."""
        places, at = [], -1
        while (at := self._held.find(b"\n", at + 1, self.size)) >= 0:
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
        """False where no newline stands before white space, told in three passes.

        10 - byte is 0 for a newline, and else more than 32 but for control characters and bytes
        over 233, which no UTF-8 has before white space: the greater of it and of the next byte.
        """
        np.subtract(_NEWLINE, self._bytes, out=self._spare)
        np.maximum(self._spare[:-1], self._bytes[1:], out=self._spare[:-1])
        self._spare[-1] = _FILLER
        return bool(self._spare.min() <= _SPACE)

    def _forget_blank_lines(self) -> None:
        doubtful = self._marks[:-1] & (self._bytes[1:] <= _SPACE)
        for before in np.flatnonzero(doubtful).tolist():
            end = self._held.find(b"\n", before + 1, self.size)
            if end >= 0 and self._is_blank(before + 1, end):
                self._marks[end] = False

    def _count(self) -> None:
        """Eight marks are added at once: the bytes of a block's 128 words hold up to 128 each."""
        words = self._marks.view(np.uint64).reshape(-1, _BLOCK // 8)
        sums = words.sum(axis=1).view(np.uint8).reshape(-1, 8)
        self._counts = sums.sum(axis=1, dtype=np.int64)
        self._upto = self._counts.cumsum()

    def _is_blank(self, start: int, stop: int) -> bool:
        if start == stop:
            return True
        return self._held[start] <= _SPACE and self._held[start:stop].isspace()

    def join(self, is_blank: bool) -> bool:
        """Puts the chunk behind the one before, where a line began that `is_blank` so far.

        Returns the same of the line that is open at its end.
        """
        first = self._held.find(b"\n", 0, self.size)
        if first < 0:
            return is_blank and self._is_blank(0, self.size)
        if is_blank and self._is_blank(0, first):
            self._forget(first)
        return self._is_blank(self._held.rfind(b"\n", 0, self.size) + 1, self.size)

    def _forget(self, first: int) -> None:
        if self._few is not None:
            self._few = self._few[1:]
            return
        self._marks[first] = False
        self._count()

    @property
    def rows(self) -> int:
        """Rows that end in this chunk."""
        return int(self._upto[-1]) if self._few is None else len(self._few)

    def ends(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The byte after each of these rows, which count from 1 in this chunk."""
        if self._few is not None:
            return self._few[numbers - 1] + 1
        if len(numbers) * _BLOCK > 2 * len(self._marks):
            return np.asarray(np.flatnonzero(self._marks)[numbers - 1] + 1)
        blocks = self._upto.searchsorted(numbers)
        marks = self._marks.reshape(-1, _BLOCK)[blocks]
        counts = np.bitwise_count(np.packbits(marks, axis=1).view(np.uint64))
        word, nth = _group_of_nth(counts, numbers - (self._upto - self._counts)[blocks])
        bits = marks.reshape(len(marks), -1, _WORD)[np.arange(len(marks)), word]
        bit, _ = _group_of_nth(bits, nth)
        return np.asarray(blocks * _BLOCK + word * _WORD + bit + 1)


def _group_of_nth(
    counts: NDArray[Any], nth: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row of counts the column where its nth is reached, and which one of it that is."""
    upto = counts.cumsum(axis=1, dtype=np.int64)
    column = (upto < nth[:, None]).sum(axis=1)
    each = np.arange(len(counts))
    return column, nth - (upto[each, column] - counts[each, column])


class _Rows:
    """What is known of a file up to the chunk that was taken last."""

    def __init__(self, start: int, batch_rows: int, most: int) -> None:
        self._start, self._batch_rows, self._most = start, batch_rows, most
        self._rows, self._at, self._last_end = 0, start, start
        self._is_blank = True
        self._chunk = _Chunk()
        self._ends = array("q")

    @property
    def left(self) -> int:
        """Rows up to the limit."""
        return self._most - self._rows

    def take(self, held: bytearray, size: int) -> None:
        """Adds the next bytes of the file, the first `size` of `held`."""
        chunk = self._chunk
        chunk.look(held, size)
        self._is_blank = chunk.join(self._is_blank)
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
        """The whole file, where a last row needs no newline."""
        if self.left and not self._is_blank:
            self._rows, self._last_end = self._rows + 1, self._at
            if self._rows % self._batch_rows == 0:
                self._ends.append(self._at)
        if self._rows % self._batch_rows:
            self._ends.append(self._last_end)
        return Scan(self._rows, self._start, self._ends)
