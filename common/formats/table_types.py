"""Types of columns as tables of a lake have them: what each Arrow type is written as in a part, or that
the table's format has no room for it.

Tried with deltalake 1.6, pyiceberg 0.12 and DuckDB 2.0, value by value (tests/unit/test_table_types.py).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import pyarrow as pa

from nightshift.common.formats.parquet.column_types import written_as
from nightshift.common.text import counted

TableFormat = Literal["delta", "iceberg"]

TITLES: dict[TableFormat, str] = {"delta": "a Delta table", "iceberg": "an Iceberg table"}

MOST_DIGITS = 38
"""Digits of the widest decimal of both formats."""

_BOTH = {
    **{
        kind: kind
        for kind in (
            pa.bool_(),
            pa.int32(),
            pa.int64(),
            pa.float32(),
            pa.float64(),
            pa.string(),
            pa.binary(),
            pa.date32(),
        )
    },
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}

_MORE: dict[TableFormat, dict[pa.DataType, pa.DataType]] = {
    "delta": {
        pa.int8(): pa.int8(),
        pa.int16(): pa.int16(),
        pa.uint8(): pa.int16(),
        pa.uuid(): pa.binary(),
    },
    "iceberg": {
        pa.int8(): pa.int32(),
        pa.int16(): pa.int32(),
        pa.uint8(): pa.int32(),
        pa.uuid(): pa.uuid(),
        pa.time32("s"): pa.time64("us"),
        pa.time32("ms"): pa.time64("us"),
        pa.time64("us"): pa.time64("us"),
    },
}


class NoTableType(ValueError):
    """The format of the table has no type for a column; the message names both."""


def table_type(kind: pa.DataType, table: TableFormat) -> pa.DataType | None:
    """The type of a column of this type in the parts of such a table; None where the format has none that
    holds every value.

    Moments alone may not fit: those of `timestamp[s]` and `timestamp[ms]` that lie further than 292,000
    years from 1970 do not fit `timestamp[us]`.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return table_type(kind.value_type, table)
    if types.is_struct(kind):
        return _struct(kind, table)
    if types.is_map(kind):
        key, value = table_type(kind.key_type, table), table_type(kind.item_type, table)
        return None if key is None or value is None else pa.map_(key, value)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = table_type(kind.value_type, table)
        return None if inner is None else pa.list_(inner)
    known = _BOTH.get(kind) or _MORE[table].get(kind)
    if known is None and isinstance(kind, pa.BaseExtensionType):
        return table_type(kind.storage_type, table)
    return known or _sized(kind, table)


def _struct(kind: pa.StructType, table: TableFormat) -> pa.DataType | None:
    fields = [(each.name, table_type(each.type, table)) for each in kind]
    # Parquet has no struct without fields.
    holds_all = bool(fields) and all(found is not None for _, found in fields)
    return pa.struct(fields) if holds_all else None


def _sized(kind: pa.DataType, table: TableFormat) -> pa.DataType | None:
    """The same of types with a parameter."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", kind.tz and "UTC")
    if (
        types.is_decimal(kind)
        and kind.precision <= MOST_DIGITS
        and 0 <= kind.scale <= kind.precision
    ):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary() if table == "delta" else kind
    return None


def for_table(schema: pa.Schema, table: TableFormat) -> pa.Schema:
    """The columns of parts, written in the types of such a table; NoTableType where one has none, or where
    two names are one for the format.
    """
    fields = []
    for field in schema:
        kind = table_type(field.type, table)
        if kind is None:
            raise NoTableType(
                f"the column {field.name!r} is {field.type}, which {TITLES[table]} has no type for"
            )
        fields.append(written_as(field, kind))
    # Names of Delta that differ by case alone are one; Iceberg names a field of a struct by its path.
    joint = "\0" if table == "delta" else "."
    paths = Counter(path.casefold() if table == "delta" else path for path in _paths(fields, joint))
    ((name, times),) = paths.most_common(1)
    if times > 1:
        title = name.replace("\0", ".")
        raise NoTableType(f"{counted(times, 'column')} have the name {title!r} in {TITLES[table]}")
    return pa.schema(fields)


def _paths(fields: Iterable[pa.Field], joint: str, above: str = "") -> Iterator[str]:
    """The names of all fields, each behind those that it lies in."""
    for field in fields:
        name = above + field.name
        yield name
        inner = field.type
        children = [inner.field(at) for at in range(inner.num_fields)]
        yield from _paths(children, joint, name + joint)


def without_misfits(
    table: pa.Table, columns: Iterable[str], kind: TableFormat
) -> tuple[pa.Table, dict[int, str]]:
    """The rows with null for each value of these columns that the type in the table cannot hold, and why, by
    position.
    """
    misfits: dict[int, str] = {}
    for name in columns:
        column = table.column(name)
        target = table_type(column.type, kind)
        if target is None or target == column.type or _fits(column, target):
            continue
        # A copy of the row: the slice of a nested column is cast with the values of all rows.
        places = [at if _fits(column.take([at]), target) else None for at in range(len(column))]
        kept = column.take(pa.array(places, pa.int64()))
        table = table.set_column(table.column_names.index(name), name, kept)
        why = f"the column {name!r} holds a {column.type} that is beyond {target}"
        misfits |= {at: why for at, place in enumerate(places) if place is None}
    return table, misfits


def _fits(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
