"""Arrow values as Python ones: what `to_pylist` cannot hold is brought to a type that it can."""

from typing import Any

import pyarrow as pa


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Row dicts. Nanoseconds are cut to microseconds: Python's own types have no more."""
    wanted = pa.schema([pa.field(each.name, _coarse(each.type)) for each in table.schema])
    if wanted.types != table.schema.types:
        table = table.cast(wanted, safe=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def to_list(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of one column, like `to_rows`."""
    wanted = _coarse(column.type)
    if wanted != column.type:
        column = column.cast(wanted, safe=False)
    values: list[Any] = column.to_pylist()
    return values


def is_kept(value: Any, got: Any) -> bool:
    """True when a value came through a cast whole: no key, item or fraction is gone."""
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
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_list(kind):
        return pa.list_(_coarse(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_coarse(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_coarse(kind.value_type), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_coarse(kind.key_type), _coarse(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _coarse(each.type)) for each in kind])
    return kind
