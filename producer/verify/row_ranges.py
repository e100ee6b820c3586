"""Row indices that were read from parts, as ranges: a million rows are a few thousand pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import RowRanges

Range = tuple[int, int]


def ranges_of(index: pa.Array) -> list[Range]:
    """Half-open ranges of ascending indices without nulls; a repeated index begins a new range."""
    count = len(index)
    if count == 0:
        return []
    steps = pc.subtract(index.slice(1), index.slice(0, count - 1))
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1))
    firsts = pa.concat_arrays([pa.array([0], pa.uint64()), pc.add(breaks, 1).cast(pa.uint64())])
    lasts = pa.concat_arrays([breaks.cast(pa.uint64()), pa.array([count - 1], pa.uint64())])
    stops = pc.add(index.take(lasts), 1)
    return list(zip(index.take(firsts).to_pylist(), stops.to_pylist(), strict=True))


def ascends(index: pa.Array) -> bool:
    """Whether each index is larger than the one before it."""
    if len(index) < 2:
        return True
    return bool(pc.all(pc.greater(index.slice(1), index.slice(0, len(index) - 1))).as_py())


@dataclass(frozen=True, slots=True)
class Cover:
    """Rows that ranges hold twice, rows of 0..total that they lack, and rows beyond those."""

    doubled: RowRanges
    missing: RowRanges
    beyond: RowRanges


def cover(ranges: Sequence[Range], total: int) -> Cover:
    """Compares ranges, in any order, with the rows 0..total."""
    doubled: list[Range] = []
    highest = 0
    for start, stop in sorted(ranges):
        doubled.append((start, min(stop, highest)))
        highest = max(highest, stop)
    held, dataset = RowRanges.of(*ranges), RowRanges.of((0, total))
    return Cover(RowRanges.of(*doubled), dataset.minus(held), held.minus(dataset))


def as_texts(rows: RowRanges) -> list[str]:
    """Ranges for people: `7` or `7 to 12`, both ends counted."""
    return [
        str(start) if stop - start == 1 else f"{start} to {stop - 1}" for start, stop in rows.ranges
    ]
