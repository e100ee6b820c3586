"""Where rows are, without the rows: source files, and the rows of a batch in one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

InputFormat = Literal["parquet", "jsonl", "csv", "openai", "table"]
"""`table` is what is read of a table from a copy, see `spec/table_uris.py`."""


@dataclass(frozen=True, slots=True)
class RowRanges:
    """Ascending, disjoint, half-open ranges of dataset-wide row indices; the rows of a batch."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, *ranges: tuple[int, int]) -> "RowRanges":
        """From ranges in any order; touching and overlapping ones become one."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(pair for pair in ranges if pair[0] < pair[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    @classmethod
    def from_indices(cls, indices: Iterable[int]) -> "RowRanges":
        """From single row indices in any order."""
        return cls.of(*((index, index + 1) for index in indices))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def minus(self, other: "RowRanges") -> "RowRanges":
        """The rows of these ranges that `other` has not."""
        left: list[tuple[int, int]] = []
        first = 0  # both ascend, and a batch of an arranged job has as many ranges as rows
        for start, stop in self.ranges:
            at = start
            while first < len(other.ranges) and other.ranges[first][1] <= at:
                first += 1
            for other_start, other_stop in islice(other.ranges, first, None):
                if other_start >= stop:
                    break
                left.append((at, other_start))
                at = other_stop
            left.append((at, stop))
        return RowRanges.of(*left)

    def union(self, other: "RowRanges") -> "RowRanges":
        """The rows of these ranges and of `other`."""
        return RowRanges.of(*self.ranges, *other.ranges)

    def first(self, rows: int) -> "RowRanges":
        """The first `rows` rows."""
        taken: list[tuple[int, int]] = []
        for start, stop in self.ranges:
            if rows <= 0:
                break
            taken.append((start, min(stop, start + rows)))
            rows -= stop - start
        return RowRanges.of(*taken)

    def between(self, start: int, stop: int) -> "RowRanges":
        """The rows from place `start` to before place `stop`."""
        head = self.first(start)
        return self.first(stop).minus(head)

    def halves(self) -> tuple["RowRanges", "RowRanges"]:
        """Two sets of neighbouring rows, the first with half of them, rounded down."""
        front = self.first(len(self) // 2)
        return front, self.minus(front)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file as it was when it was planned.

    `size` is in bytes; `fingerprint` is the store's etag, else the modification time in
    nanoseconds: together they tell whether the file is still the one that was planned.
    `first_row` is the dataset-wide index of its first row, and `left_out` of its `rows` are not the job's, by
    `input.where`. `origin` is set where the file is a
    converted copy: then `origin` is the file that the user gave. `arranged` is the copy that has its
    rows in another order, with those of the files beside it; without one they are read here. `title` is the file in
    messages about its rows, which the tenant of the job reads; without one they have its URI.
    """

    uri: str
    format: InputFormat
    size: int
    fingerprint: str
    rows: int
    first_row: int
    arranged: str | None = None
    origin: str | None = None
    left_out: int = 0
    title: str | None = None

    @property
    def rows_taken(self) -> int:
        """How many of the rows are the job's."""
        return self.rows - self.left_out

    @property
    def given_uri(self) -> str:
        """The file that the user gave, for messages about its rows."""
        return self.title or self.origin or self.uri


@dataclass(frozen=True, slots=True)
class Locator:
    """The bytes of a file of lines that hold the rows from `first_row` (dataset-wide) on. In an
    arranged copy offset and length count rows, and `first_row` is the lowest of them.

    A split batch keeps the locator of the batch it came from.
    """

    first_row: int
    byte_offset: int
    byte_length: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The rows of one batch: a file and where in it; `locator` is None for Parquet."""

    source: SourceFile
    rows: RowRanges
    locator: Locator | None = None
