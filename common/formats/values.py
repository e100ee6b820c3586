"""Arrow's values as Python's and back, where one side cannot hold all that the other can."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.formats.arrow_types import map_type
from nightshift.common.text import map_leaves, whole_characters

_ROW_COUNTER = "\0rows"


def table_of(columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> pa.Table:
    """A table that knows its number of rows even where there are no columns."""
    counted = pa.Table.from_arrays(
        [*columns.values(), pa.nulls(rows)], names=[*columns, _ROW_COUNTER]
    )
    return counted.drop_columns(_ROW_COUNTER)


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts. Nanoseconds are cut to microseconds, since Python's types have no more."""
    rows: list[dict[str, Any]] = for_python(table).to_pylist()
    return rows


def for_python(table: pa.Table) -> pa.Table:
    """The table with microseconds in place of nanoseconds, which Python's types do not have."""
    wanted = pa.schema([(each.name, map_type(each.type, _coarse)) for each in table.schema])
    return table if wanted.types == table.schema.types else table.cast(wanted, safe=False)


def to_list(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of one column, like `to_rows`."""
    wanted = map_type(column.type, _coarse)
    if wanted != column.type:
        column = column.cast(wanted, safe=False)
    values: list[Any] = column.to_pylist()
    return values


def fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """The column as the planned type; nested values may have keys that the first rows had not."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException:
        return pa.array(to_list(column), kind)


def beyond_64_bits(value: Any) -> bool:
    """True for a whole number that no integer column holds."""
    return type(value) is int and not -(2**63) <= value < 2**63


def arrow_value(value: Any) -> Any:
    """The same value as Arrow takes it.

    Lone surrogates, which UTF-8 cannot hold, become `?`. Arrays of several dimensions become lists,
    and arrays of no dimension numbers.
    """
    return map_leaves(value, _arrow_leaf)


def _arrow_leaf(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value, "?")
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return value.tolist()
    return value


def is_kept(value: Any, got: Any) -> bool:
    """True when a cast lost no key, item or fraction of a value."""
    if isinstance(value, dict):
        return isinstance(got, dict) and all(
            key in got and is_kept(each, got[key]) for key, each in value.items()
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(got, list)
            and len(got) == len(value)
            and all(is_kept(one, other) for one, other in zip(value, got, strict=True))
        )
    if isinstance(value, bool) or isinstance(got, bool):
        return type(value) is type(got) and value == got
    if isinstance(value, int | float) and isinstance(got, int | float):
        return value == got or value != value
    return True


def _coarse(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds in place of nanoseconds."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    return kind
