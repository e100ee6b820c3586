"""Parsed JSON values as columns of the planned types, and the values that do not fit."""

import base64
import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from nightshift.common.formats.jsonl.json_types import accepts, json_type, storable_type, widened
from nightshift.common.formats.values import table_of


def to_array(
    values: Sequence[Any], planned: pa.DataType | None
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """A column of parsed JSON values, and the positions of values that the planned type cannot hold.

    Such values are null in the column. Without a planned type the values decide, and all fit.
    """
    found = json_type(values)
    target = storable_type(found) if planned is None else storable_type(widened(planned, found))
    if accepts(target, found):
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
    if isinstance(value, list) and _holds(target, len(value)):
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


def _holds(target: pa.DataType, items: int) -> bool:
    """True for the type of a list that may have `items` items."""
    if pa.types.is_fixed_size_list(target):
        return bool(target.list_size == items)
    return bool(pa.types.is_list(target))


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
    return f"column {column!r} holds {text}, which does not fit its type {kind}"
