"""Parsed JSON values as columns: their Arrow types, the type that holds the values of two, and the
values that do not fit a planned type.
"""

import base64
from collections.abc import Callable, Collection, Sequence
from datetime import time
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa

from nightshift.common.formats.arrow_types import storable_type
from nightshift.common.formats.jsonl.numbers import NumberText, json_text
from nightshift.common.formats.values import beyond_64_bits, is_kept, table_of

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
        return types.is_integer(target) or target == pa.float64()
    if types.is_floating(found):
        return bool(target == pa.float64())
    if types.is_struct(found) and types.is_struct(target):
        wanted = {field.name: field.type for field in target}
        return all(
            field.name in wanted and _accepts(wanted[field.name], field.type) for field in found
        )
    if types.is_list(found) and (types.is_list(target) or types.is_fixed_size_list(target)):
        return _accepts(target.value_type, found.value_type)
    return False


def to_array(
    values: Sequence[Any], planned: pa.DataType | None, *, fixed: bool = False
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """A column of parsed JSON values, and the positions of values that the planned type cannot hold.

    Such values are null in the column. Without a planned type the values decide, and all fit. A type
    that is not `fixed` gets the keys of nested objects that only these values have.
    """
    found = json_type(values)
    target = found if planned is None else planned if fixed else _widened(planned, found)
    target = storable_type(target)
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

    Anything becomes a string (as JSON text). Numbers are equal across their types, but that a fraction
    is the nearest one of a narrow type. Texts become what JSON has no other words for: moments,
    decimals, and bytes in base64.
    """
    types = pa.types
    if value is None:
        return None
    if types.is_string(target) or types.is_large_string(target):
        return value if isinstance(value, str) else json_text(value)
    fixed = target.list_size if types.is_fixed_size_list(target) else None
    if isinstance(value, list) and (types.is_list(target) or len(value) == fixed):
        return [as_type(item, target.value_type) for item in value]
    if types.is_struct(target) and isinstance(value, dict):
        if (key := late_key(value, target)) is not None:
            raise ValueError(f"has the key {key!r}, which the type does not have")
        return {field.name: as_type(value.get(field.name), field.type) for field in target}
    if isinstance(value, list | dict) or isinstance(value, bool) != types.is_boolean(target):
        raise ValueError("of another kind")
    if isinstance(value, bool):
        return value
    return _of_text(value, target) if isinstance(value, str) else _number(value, target)


def _of_text(text: str, target: pa.DataType) -> Any:
    types = pa.types
    if types.is_binary(target):
        data = base64.b64decode(text, validate=True)
        if base64.b64encode(data).decode("ascii") != text:
            raise ValueError("no base64 as it is written")
        return data
    if types.is_integer(target) or types.is_floating(target):
        raise ValueError("of another kind")
    if types.is_timestamp(target) and target.unit in ("s", "ms"):
        # A part has six digits of a second, which Arrow does not read as a coarser unit.
        return pa.scalar(text).cast(pa.timestamp("us", target.tz)).cast(target)
    if types.is_time(target):
        return pa.scalar(time.fromisoformat(text), target)
    # Not as_py(): Python's datetime would refuse nanoseconds.
    return pa.scalar(text).cast(target)


def _number(value: int | float | NumberText, target: pa.DataType) -> Any:
    types = pa.types
    if types.is_decimal(target):
        text = value.text if isinstance(value, NumberText) else repr(value)
        return pa.scalar(Decimal(text), target)
    if not types.is_integer(target) and not types.is_floating(target):
        raise ValueError("of another kind")
    if isinstance(value, NumberText):
        raise ValueError("a number that no double holds")
    if types.is_integer(target) and isinstance(value, float):
        if not value.is_integer():
            raise ValueError("no whole number")
        value = int(value)
    found = pa.scalar(value, target)
    if not is_kept(value, found.as_py(), target):
        raise ValueError("more digits than the type has")
    return found


def late_key(value: Any, kind: pa.DataType) -> str | None:
    """A key with a value, as its path, that the type has no place for; None where there is none."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        for key, each in value.items():
            if key not in types and each is not None:
                return str(key)
            below = late_key(each, types[key]) if key in types else None
            if below is not None:
                return f"{key}.{below}"
    if isinstance(value, list) and (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return next(filter(None, (late_key(each, kind.value_type) for each in value)), None)
    return None


def to_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str] | None,
    schema: pa.Schema,
    fixed: Collection[str] = (),
) -> tuple[pa.Table, dict[int, str]]:
    """Rows as columns, and by position why a row does not fit the types of the schema.

    Without `columns` the table has the columns of the schema and all others that the rows have. The
    columns `fixed` have the types of the schema exactly.
    """
    planned = dict(zip(schema.names, schema.types, strict=True))
    names = dict.fromkeys(chain(planned, *rows) if columns is None else columns)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    bad: dict[int, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        arrays[name], misfits = to_array(values, planned.get(name), fixed=name in fixed)
        for at in misfits:
            bad.setdefault(at, misfit(name, values[at], planned.get(name)))
    return table_of(arrays, len(rows)), bad


def misfit(column: str, value: Any, kind: pa.DataType | None) -> str:
    """Why a value does not fit the type of its column, with the beginning of the value."""
    key = None if kind is None else late_key(value, kind)
    if key is not None:
        return (
            f"column {column!r} has the key {key!r}, which no object had among the first rows of the "
            "files: the column keeps the keys that it had there"
        )
    text = json_text(value)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    if beyond_64_bits(value):
        text = f"{text}, a whole number beyond 64 bits"
    if isinstance(value, NumberText):
        text = f"{text}, a number that no double holds"
    return f"column {column!r} holds {text}, which does not fit its type {kind}"
