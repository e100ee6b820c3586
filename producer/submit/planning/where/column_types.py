"""Check that the columns of a condition exist and compare with its constants, before a row is read."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, assert_never

import pyarrow as pa
from pyarrow import types

from nightshift.common.errors import BadInput
from nightshift.common.text import did_you_mean
from nightshift.common.where.condition import (
    And,
    Column,
    Compare,
    Condition,
    Constant,
    Fixed,
    Holds,
    In,
    IsNull,
    Kind,
    Like,
    Not,
    Or,
)

Predicate = Callable[[pa.DataType], bool]

NUMBER: frozenset[Kind] = frozenset(("number",))
MOMENT: frozenset[Kind] = frozenset(("text", "date", "timestamp", "timestamptz"))

COMPARABLE: Mapping[Predicate, tuple[frozenset[Kind], str]] = {
    types.is_boolean: (frozenset(("boolean",)), "TRUE and FALSE"),
    types.is_string: (frozenset(("text",)), "texts in quotes"),
    types.is_date: (MOMENT, "DATE '2024-01-31'"),
    types.is_timestamp: (MOMENT, "TIMESTAMP '2024-01-31 06:00:00'"),
    types.is_time: (frozenset(("text", "time")), "TIME '06:00:00'"),
    types.is_integer: (NUMBER, "numbers"),
    types.is_floating: (NUMBER, "numbers"),
    types.is_decimal128: (NUMBER, "numbers"),
}
"""Types that DuckDB compares, each with the constants that a column of it compares with, and their description."""

MOMENT_FORM = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.(?P<digits>\d{1,9}))?)?(?P<offset>Z|[+-]\d\d(?::\d\d)?)?)?"
)
"""Form of a date or a timestamp."""

MICROSECOND_DIGITS = 6
"""Digits of a second that DuckDB's TIMESTAMP, TIMESTAMPTZ and TIME have."""


def is_comparable(kind: pa.DataType) -> bool:
    """Return True if conditions compare values of this type, False if they can only test it for null."""
    return any(matches(kind) for matches in COMPARABLE)


def type_of(column: Column, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column or of a field inside it; BadInput if the schema has none of that name."""
    known = {field.name: field.type for field in schema}
    for depth, name in enumerate(column.path):
        if name not in known:
            parent = f"the column {'.'.join(column.path[:depth])!r}" if depth else "the input"
            raise BadInput(
                f"input.where names {name!r}{did_you_mean(name, known)}, which {parent} does not have: names in a "
                "condition are columns, and texts are in single quotes"
            )
        kind = known[name]
        if types.is_null(kind):
            return kind
        known = {each.name: each.type for each in kind} if types.is_struct(kind) else {}
    return kind


def check(condition: Condition, schema: pa.Schema) -> None:
    """Raise BadInput, with the column and its type, if a part of the condition does not fit the schema."""
    for leaf in _leaves(condition):
        _check_leaf(leaf, schema)


def _leaves(condition: Condition) -> Iterator[Any]:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(part)
        case Not(of):
            yield from _leaves(of)
        case _:
            yield condition


def _check_leaf(leaf: Compare | In | Like | Holds | IsNull | Fixed, schema: pa.Schema) -> None:
    match leaf:
        case Fixed():
            return
        case IsNull(column):
            type_of(column, schema)
        case Holds(column):
            kind = type_of(column, schema)
            if not types.is_boolean(kind) and not types.is_null(kind):
                raise BadInput(
                    f"input.where: {column} is used as a condition and is {kind}: compare it, or name a column of booleans"
                )
        case Like(column):
            kind = type_of(column, schema)
            if not types.is_string(kind) and not types.is_null(kind):
                raise BadInput(
                    f"input.where has LIKE for {column}, which is {kind}: LIKE is for texts"
                )
        case In(column, values):
            for value in values:
                _check_constant(column, type_of(column, schema), value)
        case Compare(left, _, right):
            if isinstance(right, Column):
                _check_columns(left, type_of(left, schema), right, type_of(right, schema))
            else:
                _check_constant(left, type_of(left, schema), right)
        case _:
            assert_never(leaf)


def _check_columns(left: Column, one: pa.DataType, right: Column, other: pa.DataType) -> None:
    if types.is_null(one) or types.is_null(other):
        return
    if one != other or not is_comparable(one):
        raise BadInput(
            f"input.where compares {left}, which is {one}, with {right}, which is {other}: two columns compare "
            "if both have the same type without fields or items"
        )


def _check_constant(column: Column, kind: pa.DataType, constant: Constant) -> None:
    if constant.kind == "null" or types.is_null(kind):
        return
    kinds, expected = next(
        (each for matches, each in COMPARABLE.items() if matches(kind)),
        (frozenset[Kind](), "IS NULL and IS NOT NULL alone"),
    )
    if constant.kind not in kinds:
        raise BadInput(
            f"input.where compares {column}, which is {kind}, with the {constant}: it takes {expected}"
        )
    if types.is_temporal(kind) and (why := _moment_fault(str(constant.value), constant.kind, kind)):
        raise BadInput(
            f"input.where compares {column}, which is {kind}, with {constant.value!r}: {why}"
        )


def _moment_fault(text: str, written_as: Kind, kind: pa.DataType) -> str | None:
    """Return what is wrong with the text of a date, timestamp or time of day for a column of type `kind`."""
    if types.is_time(kind):
        digits = re.search(r"\.(\d+)$", text.strip())
        return _digits_fault(
            digits[1] if digits else None, types.is_time64(kind) and kind.unit == "ns"
        )
    form = MOMENT_FORM.fullmatch(text.strip())
    if form is None:
        return "write 2024-01-31, 2024-01-31 06:00:00 or 2024-01-31T06:00:00+01:00"
    if len(text.strip()) > 10 and (
        written_as == "date" or (written_as == "text" and types.is_date(kind))
    ):
        return "write a date without a time of day"
    if form["offset"] and (types.is_date(kind) or kind.tz is None):
        return "the column has no time zone, so leave the offset out"
    try:
        datetime.fromisoformat(text.strip())
    except ValueError as error:
        return str(error)
    is_exact = written_as == "text" and types.is_timestamp(kind) and kind.unit == "ns"
    return _digits_fault(form["digits"], is_exact)


def _digits_fault(digits: str | None, has_nanoseconds: bool) -> str | None:
    if digits is None or has_nanoseconds or len(digits) <= MICROSECOND_DIGITS:
        return None
    return f"at most {MICROSECOND_DIGITS} digits of a second compare with this column"
