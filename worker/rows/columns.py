"""Values of answers as Arrow columns: each value is cast, or is a failure of its row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.formats.values import arrow_value, beyond_64_bits, is_kept
from nightshift.common.row_errors import Failure
from nightshift.common.spec.json_schema import Scalar
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.structured import strict_json, typed

CAST_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError, RecursionError)
"""What Arrow raises for a value that a type cannot hold; UnicodeError is a ValueError."""

Column = tuple[pa.Array, dict[int, Failure]]
"""A column, and failures by position; the column is null there."""


def answer_column(field: pa.Field, values: Sequence[Any]) -> Column:
    """The values as a column; one that does not fit the column's type is a failure."""
    if pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type):
        return _vectors(field, values)
    try:
        # arrow_value raises for a value that contains itself, for which Arrow would crash.
        is_nested = any(isinstance(value, dict | list | tuple | np.ndarray) for value in values)
        found = pa.array(arrow_value(values) if is_nested else values)
        if found.type == field.type or (_is_basic(found.type) and _is_basic(field.type)):
            return found.cast(field.type), {}  # a safe cast, which refuses to lose digits
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
    width = field.type.list_size
    numbers = np.zeros((len(values), width), field.type.value_type.to_pandas_dtype())
    missing = np.ones(len(values), bool)
    failures: dict[int, Failure] = {}
    for position, value in enumerate(values):
        if value is None:
            continue
        vector = _vector(value)
        if vector is not None and vector.shape == (width,):
            numbers[position], missing[position] = vector, False
        else:
            text = _text(value) if vector is None else f"a vector of {len(vector)}"
            message = f"the column {field.name!r} has {width} numbers, and this is {text}"
            failures[position] = Failure.of(RowErrorKind.BAD_TYPE, message)
    flat = pa.array(numbers.reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=pa.array(missing))
    return column, failures


def _vector(value: Any) -> np.ndarray | None:
    """The value as an array of numbers; None for another value."""
    try:
        vector = np.asarray(value)
    except CAST_ERRORS:
        return None
    return vector if vector.dtype.kind in "fiu" and vector.ndim == 1 else None


def _cast_one_by_one(field: pa.Field, values: Sequence[Any]) -> Column:
    good: list[Any] = []
    failures: dict[int, Failure] = {}
    for position, value in enumerate(values):
        try:
            good.append(_cast(arrow_value(value), field.type))
        except CAST_ERRORS:
            good.append(None)
            message = _misfit(field, value)
            failures[position] = Failure.of(RowErrorKind.BAD_TYPE, message)
    return pa.array(good, field.type), failures


def _misfit(field: pa.Field, value: Any) -> str:
    """Why a value does not fit its column, and what the value is."""
    holds = f"the column {field.name!r} holds {_text(value)}"
    if beyond_64_bits(value):
        return f"{holds}, a whole number beyond 64 bits: answer with a text or a float"
    kind = {bool: "a truth value", int: "a whole number", float: "a number", str: "a text"}
    what = kind.get(type(value), "")
    return f"{holds}{what and f', {what},'} and its answers are {field.type}: all need one type"


def _cast(value: Any, kind: pa.DataType) -> Any:
    """The value as a type holds it; one of CAST_ERRORS when the type cannot hold all of it."""
    if value is None:
        return None
    found = pa.scalar(value)
    if _is_basic(found.type) and _is_basic(kind):
        return found.cast(kind).as_py()
    if pa.types.is_boolean(found.type) != pa.types.is_boolean(kind):
        raise TypeError("a truth value is no number and no text")
    try:
        cast = pa.scalar(value, kind).as_py()
    except CAST_ERRORS:
        cast = found.cast(kind).as_py()
    if not is_kept(value, cast):
        raise ValueError("a part of the value would be lost")
    return cast


def _is_basic(kind: pa.DataType) -> bool:
    """Whether Arrow's safe cast from or to a type raises in place of losing a part of the value."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_null, types.is_string)
    return any(test(kind) for test in tests)


def _text(value: Any) -> str:
    """Numbers and texts for a message as they are, other values by their type."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)[:100]
    return f"a {type(value).__name__}"
