"""Between Postgres's int8multirange and RowRanges."""

from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from nightshift.common.descriptor import RowRanges


def to_multirange(rows: RowRanges) -> Multirange[int]:
    """For a statement's parameter."""
    return Multirange([Range(start, stop) for start, stop in rows.ranges])


def to_literal(rows: RowRanges) -> str:
    """For COPY and casts: {[0,256)}."""
    return "{" + ",".join(f"[{start},{stop})" for start, stop in rows.ranges) + "}"


def from_multirange(value: Multirange[int]) -> RowRanges:
    """From a result; Postgres keeps the ranges canonical: half-open and ascending."""
    return RowRanges.of(*((int(part.lower or 0), int(part.upper or 0)) for part in value))
