"""Arrow's values as Python's and back, where one side cannot hold all that the other can."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.arrow_types import map_type
from nightshift.common.text import map_leaves, whole_characters

_ROW_COUNTER = "\0rows"

CAST_ERRORS = (pa.ArrowException, ArithmeticError, TypeError, ValueError, RecursionError)
"""What Arrow and Python raise for a value that a type cannot hold; UnicodeError is a ValueError."""

LOST = "the value would come back as another one"

_NUMPY = (np.number, np.datetime64)
"""The same of NumPy's types; timedelta64 is a number there."""

_NUMBER = (int, float, Decimal)

_KINDS = (bool, _NUMBER, str, bytes, datetime, date, time, timedelta)
"""Kinds of values, of which the first one counts: a bool is a number, too, and a datetime a date."""

_PLAIN = {bool, int, float, str, bytes, date, timedelta}
"""Types of which the values of one make an array that gives them back."""


def table_of(columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> pa.Table:
    """A table that knows its number of rows even where there are no columns."""
    counted = pa.Table.from_arrays(
        [*columns.values(), pa.nulls(rows)], names=[*columns, _ROW_COUNTER]
    )
    return counted.drop_columns(_ROW_COUNTER)


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts. Nanoseconds become the microsecond before, since Python's types have no more."""
    rows: list[dict[str, Any]] = for_python(table).to_pylist()
    return rows


def for_python(table: pa.Table) -> pa.Table:
    """The table with microseconds in place of nanoseconds, which Python's types do not have."""
    wanted = pa.schema([(each.name, map_type(each.type, _coarse)) for each in table.schema])
    if wanted.types == table.schema.types:
        return table
    columns = [
        _floored(column, field.type) for column, field in zip(table.columns, wanted, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def to_list(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values of one column, like `to_rows`."""
    values: list[Any] = _floored(column, map_type(column.type, _coarse)).to_pylist()
    return values


def _floored(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """The values with each moment and duration in nanoseconds at the microsecond at or before it. A cast would
    round those before 1970, and negative durations, up.
    """
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_floored(chunk, kind) for chunk in column.chunks], kind)
    types = pa.types
    if not types.is_nested(kind):
        cut = column.cast(kind, safe=False)
        if types.is_time(kind):
            return cut
        whole = cut.view(pa.int64())
        is_later = pc.greater(pc.multiply(whole, 1000), column.view(pa.int64()))
        return pc.subtract(whole, is_later.cast(pa.int64())).view(kind)
    # A slice has the values of all rows, and its nulls cannot be given.
    column = pa.concat_arrays([column, column.slice(0, 0)])
    nulls = column.is_null()
    if types.is_struct(kind):
        fields = [_floored(column.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=nulls)
    if types.is_map(kind):
        keys, items = _floored(column.keys, kind.key_type), _floored(column.items, kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, kind, mask=nulls)
    values = _floored(column.values, kind.value_type)
    if types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    return type(column).from_arrays(column.offsets, values, kind, mask=nulls)


def beyond_64_bits(value: Any) -> bool:
    """True for a whole number that no integer column holds."""
    return type(value) is int and not -(2**63) <= value < 2**63


def arrow_value(value: Any) -> Any:
    """The same value as Arrow takes it.

    Lone surrogates, which UTF-8 cannot hold, become U+FFFD, and two keys that become one are a
    ValueError. Arrays of several dimensions become lists, and arrays of no dimension numbers.
    """
    return map_leaves(value, _arrow_leaf)


def _arrow_leaf(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return value.tolist()
    return value


def whole_array(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """The values as an array of this type, else of the type that Arrow finds for them.

    One of CAST_ERRORS where a value would come back as another one: Arrow takes a text apart for a
    list, cuts times to a coarser unit, and leaves out keys that a struct does not have.
    """
    types = set(map(type, values)) - {NoneType}
    if not types:
        return pa.nulls(len(values), kind)
    if len(types) == 1 and (types <= _PLAIN or issubclass(next(iter(types)), _NUMPY)):
        with suppress(*CAST_ERRORS):  # as for half of a character
            found = pa.array(values)
            if kind is None or found.type == kind:
                return found
            if types == {int} and pa.types.is_integer(kind):
                return found.cast(kind)
    # arrow_value raises for a value that contains itself, for which Arrow would crash.
    taken = arrow_value(values)
    if kind is not None and pa.types.is_nested(kind):
        for value in taken:
            _check_shape(value, kind)
    found = pa.array(taken, kind)
    if not all(is_kept(*pair, found.type) for pair in zip(taken, found.to_pylist(), strict=True)):
        raise ValueError(LOST)
    return found


def whole_value(value: Any, kind: pa.DataType) -> pa.Array:
    """An array of the value alone; one of CAST_ERRORS where the type cannot hold it whole."""
    with suppress(*CAST_ERRORS):
        return whole_array([value], kind)
    # Some values have to be cast, such as NumPy's nanoseconds to microseconds.
    found = whole_array([value])
    if pa.types.is_nested(found.type) or pa.types.is_nested(kind):
        raise ValueError(LOST)
    cast = found.cast(kind)
    if not is_kept(arrow_value(value), cast[0].as_py(), kind):
        raise ValueError(LOST)
    return cast


def _check_shape(value: Any, kind: pa.DataType) -> None:
    """ValueError where a nested type is given something else: Arrow takes texts apart, and ends the
    process over a map without keys.
    """
    types = pa.types
    if value is None or not types.is_nested(kind):
        return
    if types.is_struct(kind):
        if not isinstance(value, Mapping):
            raise ValueError(LOST)
        for field in kind:
            _check_shape(value.get(field.name), field.type)
    elif types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list | tuple) or not all(map(_is_pair, pairs)):
            raise ValueError(LOST)
        for key, each in pairs:
            _check_shape(key, kind.key_type)
            _check_shape(each, kind.item_type)
    elif not isinstance(value, list | tuple | set | np.ndarray):
        raise ValueError(LOST)
    elif types.is_nested(kind.value_type):
        for each in value:
            _check_shape(each, kind.value_type)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] is not None


def is_kept(value: Any, got: Any, kind: pa.DataType) -> bool:
    """True where `got`, which came back from a column of this type, is the value: of the same kind,
    and equal.

    A key that is absent is as good as one that is null, numbers are equal across their types, and a
    fraction may be the nearest one that the width of the column has.
    """
    if value is None or got is None:
        return value is got or (
            isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value)
        )
    if isinstance(value, Mapping):
        return _is_object_kept(value, got, kind)
    if isinstance(value, list | tuple | set | np.ndarray):
        return _are_items_kept(list(value), got, kind)
    return _is_leaf_kept(value, got, kind)


def _is_leaf_kept(value: Any, got: Any, kind: pa.DataType) -> bool:
    """The same of a value that holds no others."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _is_numpy_moment_kept(value, got)
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    known = _kind_of(value)
    if known is not _kind_of(got):
        return False
    if known is None:
        return type(value) is type(got) and bool(value == got)
    if known is _NUMBER:
        return _is_number_kept(value, got, kind)
    return bool(value == got) and _is_zoned(value) == _is_zoned(got)


def _kind_of(value: Any) -> type | tuple[type, ...] | None:
    for known in _KINDS:
        if isinstance(value, known):
            return known
    return None


def _is_object_kept(value: Mapping[Any, Any], got: Any, kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _are_items_kept(list(value.items()), got, kind)
    return (
        pa.types.is_struct(kind)
        and all(
            is_kept(each, got[name], kind.field(name).type)
            for name, each in value.items()
            if name in got
        )
        and all(each is None for name, each in value.items() if name not in got)
    )


def _are_items_kept(value: list[Any], got: Any, kind: pa.DataType) -> bool:
    if not isinstance(got, list) or len(got) != len(value):
        return False
    if pa.types.is_map(kind):
        return all(_is_pair_kept(*both, kind) for both in zip(value, got, strict=True))
    inner = kind.value_type
    types = set(map(type, value))
    # Lists of plain values are compared at once: a vector has many numbers, and a call for each is slow.
    is_plain = len(types) == 1 and types <= _PLAIN
    if is_plain and (bool in types) == pa.types.is_boolean(inner) and value == got:
        return True
    return all(is_kept(one, other, inner) for one, other in zip(value, got, strict=True))


def _is_pair_kept(value: Any, got: tuple[Any, Any], kind: pa.MapType) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and is_kept(value[0], got[0], kind.key_type)
        and is_kept(value[1], got[1], kind.item_type)
    )


def _is_number_kept(value: Any, got: Any, kind: pa.DataType) -> bool:
    if value != value or got != got:
        return bool(value != value and got != got)
    if isinstance(value, float) and isinstance(got, Decimal):
        return float(got) == value
    is_narrow = pa.types.is_floating(kind) and kind.bit_width < 64
    if isinstance(value, float) and is_narrow:
        return math.isinf(got) == math.isinf(value)
    return bool(value == got)


def _is_numpy_moment_kept(value: "np.datetime64 | np.timedelta64", got: Any) -> bool:
    # NumPy compares its own types across their units. Nanoseconds come back as a type of pandas.
    if isinstance(value, np.timedelta64):
        return isinstance(got, timedelta) and bool(value == np.timedelta64(got))
    is_day = not isinstance(got, datetime)
    if not isinstance(got, date) or is_day != (np.datetime_data(value)[0] == "D"):
        return False
    same = got.to_datetime64() if hasattr(got, "to_datetime64") else np.datetime64(got)
    return not _is_zoned(got) and bool(value == same)


def _is_zoned(value: Any) -> bool:
    return getattr(value, "tzinfo", None) is not None


def _coarse(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds in place of nanoseconds."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    return kind
