"""Parsed JSON values as columns: their Arrow types, the type that holds the values of two, and the
values that do not fit a planned type.
"""

import base64
import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from nightshift.common.formats.arrow_types import storable_type
from nightshift.common.formats.values import beyond_64_bits, table_of

MAX_DEPTH = 16
"""A value nested deeper than this is kept as JSON text."""

_INT64 = range(-(2**63), 2**63)


def json_type(values: Sequence[Any], depth: int = 0) -> pa.DataType:
    """The Arrow type of parsed JSON values: string where they are mixed, too large or too deep.

    The type of nothing but nulls is null.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds <= {int, float}:
        return _number_type(values, kinds)
    if kinds == {list} and depth < MAX_DEPTH:
        items = list(chain.from_iterable(value for value in values if value is not None))
        return pa.list_(json_type(items, depth + 1))
    if kinds == {dict} and depth < MAX_DEPTH:
        objects = [value for value in values if value is not None]
        keys = dict.fromkeys(chain.from_iterable(objects))
        return pa.struct(
            [(key, json_type([value.get(key) for value in objects], depth + 1)) for key in keys]
        )
    return pa.string()


def _number_type(values: Sequence[Any], kinds: set[type]) -> pa.DataType:
    numbers = [value for value in values if type(value) is int]
    if kinds == {int}:
        return pa.int64() if min(numbers) in _INT64 and max(numbers) in _INT64 else pa.string()
    return pa.float64() if all(abs(value) <= 2**53 for value in numbers) else pa.string()


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds values of both; string where they differ."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return _nested(one, other, merged_type) or pa.string()


def _widened(planned: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The planned type, with keys of nested objects that only the found type has."""
    return _nested(planned, found, _widened) or planned


def _nested(
    one: pa.DataType, other: pa.DataType, join: Callable[[pa.DataType, pa.DataType], pa.DataType]
) -> pa.DataType | None:
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(join(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else join(known, field.type)
        return pa.struct(list(fields.items()))
    return None


def _accepts(target: pa.DataType, found: pa.DataType) -> bool:
    """True where pyarrow makes the target of values of the found type without changing them."""
    types = pa.types
    if types.is_null(found) or target == found:
        return True
    if types.is_integer(found):
        return types.is_integer(target) or types.is_floating(target)
    if types.is_floating(found):
        return types.is_floating(target)
    if types.is_struct(found) and types.is_struct(target):
        wanted = {field.name: field.type for field in target}
        return all(
            field.name in wanted and _accepts(wanted[field.name], field.type) for field in found
        )
    if types.is_list(found) and (types.is_list(target) or types.is_fixed_size_list(target)):
        return _accepts(target.value_type, found.value_type)
    return False


def to_array(
    values: Sequence[Any], planned: pa.DataType | None
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """A column of parsed JSON values, and the positions of values that the planned type cannot hold.

    Such values are null in the column. Without a planned type the values decide, and all fit.
    """
    found = json_type(values)
    target = storable_type(found) if planned is None else storable_type(_widened(planned, found))
    if _accepts(target, found):
        try:
            return pa.array(values, target), []
        except (pa.ArrowException, OverflowError):
            pass
    fitting: list[Any] = []
    misfits: list[int] = []
    for at, value in enumerate(values):
        try:
            fitting.append(as_type(value, target))
        except (ValueError, OverflowError, RecursionError, pa.ArrowException):
            fitting.append(None)
            misfits.append(at)
    return pa.array(fitting, target), misfits


def as_type(value: Any, target: pa.DataType) -> Any:
    """The value as the target type takes it; ValueError or an Arrow error for a misfit.

    Anything becomes a string (as JSON text), whole numbers change between int and double, strings
    are converted as by Arrow's casts, base64 becomes bytes.
    """
    types = pa.types
    if value is None:
        return None
    if types.is_string(target) or types.is_large_string(target):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    fixed = target.list_size if types.is_fixed_size_list(target) else None
    if isinstance(value, list) and (types.is_list(target) or len(value) == fixed):
        return [as_type(item, target.value_type) for item in value]
    if types.is_struct(target) and isinstance(value, dict):
        return {field.name: as_type(value.get(field.name), field.type) for field in target}
    if types.is_binary(target) and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if isinstance(value, list | dict) or isinstance(value, bool) != types.is_boolean(target):
        raise ValueError("of another kind")
    if types.is_floating(target) and isinstance(value, int) and int(float(value)) != value:
        raise ValueError("more digits than a double has")
    if types.is_integer(target) and isinstance(value, float):
        if not value.is_integer():
            raise ValueError("no whole number")
        value = int(value)
    # Not as_py(): Python's datetime would refuse nanoseconds.
    return pa.scalar(value).cast(target)


def to_table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str] | None, schema: pa.Schema
) -> tuple[pa.Table, dict[int, str]]:
    """Rows as columns, and by position why a row does not fit the types of the schema.

    Without `columns` the table has the columns of the schema and all others that the rows have.
    """
    planned = dict(zip(schema.names, schema.types, strict=True))
    names = dict.fromkeys(chain(planned, *rows) if columns is None else columns)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    bad: dict[int, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        arrays[name], misfits = to_array(values, planned.get(name))
        for at in misfits:
            bad.setdefault(at, misfit(name, values[at], planned.get(name)))
    return table_of(arrays, len(rows)), bad


def misfit(column: str, value: Any, kind: pa.DataType | None) -> str:
    """Why a value does not fit the type of its column, with the beginning of the value."""
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    if beyond_64_bits(value):
        text = f"{text}, a whole number beyond 64 bits"
    return f"column {column!r} holds {text}, which does not fit its type {kind}"
