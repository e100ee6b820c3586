"""What a Parquet footer says of the values of a column in one row group, for conditions on rows."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common.formats.parquet.column_types import canonical_type
from nightshift.common.formats.parquet.footer import Footer
from nightshift.common.where.condition import Column
from nightshift.producer.submit.planning.where.prune import Facts
from nightshift.producer.submit.planning.where.typed import NANOSECONDS

UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def facts(footer: Footer, group: int, column: Column, kind: pa.DataType) -> Facts | None:
    """What is known of a column, which has type `kind` in the plan; None for nothing.

    Bounds are left out where writers and readers do not agree on their order or meaning: of half floats,
    of INT96, of types that the file has otherwise. Bounds of floats say nothing of NaN.
    """
    metadata = footer.metadata
    at = _index(metadata, column)
    if at is None or canonical_type(footer.schema.field(column.name).type) != kind:
        return None
    rows = metadata.row_group(group).num_rows
    statistics = metadata.row_group(group).column(at).statistics
    if statistics is None:
        return None
    nulls = statistics.null_count if statistics.has_null_count else None
    bounds = _bounds(statistics, metadata.schema.column(at), kind)
    if bounds is None or bounds[0] > bounds[1]:
        return Facts(rows, nulls)
    return Facts(rows, nulls, *bounds, may_be_nan=pa.types.is_floating(kind))


def _index(metadata: pq.FileMetaData, column: Column) -> int | None:
    """The place of a column that has no others inside."""
    if len(column.path) > 1:
        return None
    every = [(at, metadata.schema.column(at)) for at in range(metadata.num_columns)]
    found = [
        at
        for at, each in every
        if each.path == each.name == column.name
        and each.max_repetition_level == 0
        and each.max_definition_level <= 1
    ]
    return found[0] if len(found) == 1 else None


def _bounds(statistics: Any, column: Any, kind: pa.DataType) -> tuple[Any, Any] | None:
    """The least and the greatest value on the axis of the type."""
    types = pa.types
    if not statistics.has_min_max or column.physical_type == "INT96":
        return None
    if types.is_string(kind):
        raw = (statistics.min_raw, statistics.max_raw)
        return raw if all(isinstance(each, bytes) for each in raw) else None
    if types.is_temporal(kind):
        return _moments(statistics, column, kind)
    low, high = statistics.min, statistics.max
    if types.is_decimal(kind):
        if not isinstance(low, Decimal) or not isinstance(high, Decimal):
            return None
        unit = Fraction(10) ** kind.scale
        return math.floor(Fraction(low) * unit), math.ceil(Fraction(high) * unit)
    if types.is_boolean(kind) or types.is_integer(kind):
        return (int(low), int(high)) if isinstance(low, int) and isinstance(high, int) else None
    if kind in (pa.float32(), pa.float64()):
        return None if math.isnan(low) or math.isnan(high) else (low, high)
    return None


def _moments(statistics: Any, column: Any, kind: pa.DataType) -> tuple[int, int] | None:
    said = json.loads(column.logical_type.to_json())
    raw = (statistics.min_raw, statistics.max_raw)
    if not all(isinstance(each, int) for each in raw):
        return None
    if said.get("Type") == "Date":
        return raw if pa.types.is_date32(kind) else None
    unit = UNITS.get(said.get("timeUnit", ""))
    if unit is None or pa.types.is_date(kind) or said["Type"] not in ("Timestamp", "Time"):
        return None
    # In the units of the type; a coarser one is read rounded.
    ratio = Fraction(NANOSECONDS[unit], NANOSECONDS[kind.unit])
    return math.floor(raw[0] * ratio), math.ceil(raw[1] * ratio)
