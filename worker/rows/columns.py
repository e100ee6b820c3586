"""Values of answers as Arrow columns: each value is cast, or is a failure of its row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.formats.values import (
    CAST_ERRORS,
    beyond_64_bits,
    whole_array,
    whole_value,
)
from nightshift.common.row_errors import Failure
from nightshift.common.spec.json_schema import Scalar
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.pooling import Shares
from nightshift.worker.engines.structured import strict_json, typed

Column = tuple[pa.Array, dict[int, Failure]]
"""A column, and failures by position; the column is null there."""


def answer_column(field: pa.Field, values: Sequence[Any]) -> Column:
    """The values as a column; one that does not fit the column's type is a failure."""
    if pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type):
        return _vectors(field, values)
    if (shares := _shares(field, values)) is not None:
        return shares, {}
    values = [dict(value) if isinstance(value, Shares) else value for value in values]
    try:
        return whole_array(values, field.type), {}
    except CAST_ERRORS:
        pass
    return _cast_one_by_one(field, values)


def parsed_column(field: pa.Field, scalars: Mapping[str, Scalar], texts: Sequence[Any]) -> Column:
    """JSON texts as a column of structs; what is no text is null.

    The engines do not make this column: only the job's stored schema says whether it exists.
    """
    values: list[Any] = []
    failures: dict[int, Failure] = {}
    for position, text in enumerate(texts):
        value = None
        try:
            if isinstance(text, str):
                value = typed(strict_json(text), scalars)
        except ValueError as error:
            message = f"the answer cannot be parsed: {error}"
            failures[position] = Failure.of(RowErrorKind.INVALID_OUTPUT, message)
        values.append(value)
    return pa.array(values, field.type), failures


def _vectors(field: pa.Field, values: Sequence[Any]) -> Column:
    """Vectors of one length, without a Python object for each number."""
    width, number = field.type.list_size, field.type.value_type
    if (found := _lines(values, width, number)) is not None:
        flat = pa.array(found.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=_missing(values)), {}
    numbers = np.zeros((len(values), width), number.to_pandas_dtype())
    missing = np.ones(len(values), bool)
    failures: dict[int, Failure] = {}
    for position, value in enumerate(values):
        if value is None:
            continue
        vector = _vector(value)
        if vector is None:
            what = _text(value)
        elif vector.shape != (width,):
            what = f"a vector of {len(vector)}"
        else:
            with np.errstate(over="ignore"):
                numbers[position] = vector
            if _are_numbers_kept(value, vector, numbers[position]):
                missing[position] = False
                continue
            what = f"a vector with a number that no {number} holds"
        message = f"the column {field.name!r} has {width} numbers, and this is {what}"
        failures[position] = Failure.of(RowErrorKind.BAD_TYPE, message)
    flat = pa.array(numbers.reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=pa.array(missing))
    return column, failures


def _shares(field: pa.Field, values: Sequence[Any]) -> pa.Array | None:
    """The probabilities of labels as a struct, where all are such and have the struct's labels; else None."""
    if not pa.types.is_struct(field.type) or not all(
        value is None or type(value) is Shares for value in values
    ):
        return None
    labels = [each.name for each in field.type]
    given = {id(each.labels): each.labels for each in values if each is not None}
    if any(list(each) != labels for each in given.values()):
        return None
    lines = [None if each is None else each.numbers for each in values]
    if len({each.type for each in field.type}) != 1:
        return None
    found = _lines(lines, len(labels), field.type[0].type)
    if found is None:
        return None
    columns = [pa.array(column) for column in np.ascontiguousarray(found.T)]
    return pa.StructArray.from_arrays(columns, fields=list(field.type), mask=_missing(values))


def _lines(values: Sequence[Any], width: int, number: pa.DataType) -> np.ndarray | None:
    """The values as lines of one array, zeros where one is missing; None where one is no array of this type
    and length.
    """
    if not pa.types.is_floating(number):
        return None  # a time has no type in NumPy, or another unit
    dtype = np.dtype(number.to_pandas_dtype())
    lines = [value for value in values if value is not None]
    if not lines or not all(
        type(line) is np.ndarray and line.dtype == dtype and line.shape == (width,)
        for line in lines
    ):
        return None
    stacked: np.ndarray = np.concatenate(lines).reshape(len(lines), width)
    if len(lines) == len(values):
        return stacked
    found = np.zeros((len(values), width), dtype)
    found[[value is not None for value in values]] = stacked
    return found


def _missing(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _vector(value: Any) -> np.ndarray | None:
    """The value as an array of numbers; None for another value."""
    if isinstance(value, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, value)):
        return None  # among numbers, NumPy would make numbers of truth values
    try:
        vector = np.asarray(value)
    except CAST_ERRORS:
        return None
    return vector if vector.dtype.kind in "fiu" and vector.ndim == 1 else None


def _are_numbers_kept(value: Any, vector: np.ndarray, kept: np.ndarray) -> bool:
    """Whether whole numbers are the same after their cast, and no fraction became infinite."""
    if vector.dtype == kept.dtype and vector is value:
        return True
    if not isinstance(value, np.ndarray) or vector.dtype.kind != "f":
        pairs = zip(value, kept.tolist(), strict=True)
        if not all(one == got for one, got in pairs if not isinstance(one, float | np.floating)):
            return False
    return bool(np.array_equal(np.isfinite(vector), np.isfinite(kept)))


def _cast_one_by_one(field: pa.Field, values: Sequence[Any]) -> Column:
    pieces: list[pa.Array] = []
    failures: dict[int, Failure] = {}
    for position, value in enumerate(values):
        try:
            pieces.append(whole_value(value, field.type))
        except CAST_ERRORS:
            pieces.append(pa.nulls(1, field.type))
            message = _misfit(field, value)
            failures[position] = Failure.of(RowErrorKind.BAD_TYPE, message)
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, field.type), failures


def _misfit(field: pa.Field, value: Any) -> str:
    """Why a value does not fit its column, and what the value is."""
    holds = f"the column {field.name!r} holds {_text(value)}"
    if beyond_64_bits(value):
        return f"{holds}, a whole number beyond 64 bits: answer with a text or a float"
    kind = {bool: "a truth value", int: "a whole number", float: "a number", str: "a text"}
    what = kind.get(type(value), "")
    return f"{holds}{what and f', {what},'} and its answers are {field.type}: all need one type"


def _text(value: Any) -> str:
    """Numbers and texts for a message as they are, other values by their type."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)[:100]
    return f"a {type(value).__name__}"
