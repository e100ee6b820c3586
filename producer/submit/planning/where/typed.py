"""A condition gets the types of the columns: what compares with what, and constants as values of a column."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

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
    Like,
    Not,
    Operator,
    Or,
)


@dataclass(frozen=True, slots=True)
class Order:
    """Typed: how the values of a column stand to a constant. `value` is what statistics are held against: the
    bytes of a text, a whole number of the units of the column, or a float.
    """

    column: Column
    operator: Operator
    scalar: pa.Scalar
    value: bytes | int | float


@dataclass(frozen=True, slots=True)
class Sides:
    """Typed: how the values of two columns of one type stand to each other."""

    left: Column
    operator: Operator
    right: Column


@dataclass(frozen=True, slots=True)
class Member:
    """Typed: whether the value of a column is one of `values`; null in place of false where the list `has_null`."""

    column: Column
    values: pa.Array
    keys: tuple[bytes | int | float, ...]
    has_null: bool


@dataclass(frozen=True, slots=True)
class Known:
    """Typed: the same for every row with a value in the column, null for the others."""

    column: Column
    value: bool | None


@dataclass(frozen=True, slots=True)
class Matches:
    """Typed: whether a text matches a regular expression of RE2. Every text that does begins with `prefix`."""

    column: Column
    pattern: str
    prefix: bytes
    ignores_case: bool


Typed = Order | Sides | Member | Known | Matches | Holds | IsNull | Fixed | Not | And | Or
"""As it is evaluated: `Not`, `And` and `Or` hold typed conditions then."""


NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of a unit of Arrow's moments."""

DAY = 86_400 * 10**9

EPOCH = datetime(1970, 1, 1)

MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:\d\d)?)?)?")
"""How a day or a moment is written."""

FRACTION = re.compile(r"(?<=:\d\d)\.(\d{1,9})")
"""Digits of a second, of which Python's datetime reads six."""

WORDS = {
    pa.types.is_boolean: "TRUE and FALSE",
    pa.types.is_string: "texts in quotes",
    pa.types.is_date: "DATE '2024-01-31'",
    pa.types.is_timestamp: "TIMESTAMP '2024-01-31 06:00:00'",
    pa.types.is_time: "TIME '06:00:00'",
    pa.types.is_integer: "numbers",
    pa.types.is_floating: "numbers",
    pa.types.is_decimal: "numbers",
}
"""What a column of a type compares with."""


def typed(condition: Condition, schema: pa.Schema) -> Typed:
    """The condition over columns of these types, in canonical form; BadInput, with the column and its type, where
    they do not go together, and for a column that is not there.
    """
    match condition:
        case And(parts):
            return And(tuple(typed(each, schema) for each in parts))
        case Or(parts):
            return Or(tuple(typed(each, schema) for each in parts))
        case Not(of):
            return Not(typed(of, schema))
        case Fixed():
            return condition
        case IsNull(column):
            _type_of(column, schema)
            return condition
        case Holds(column):
            kind = _type_of(column, schema)
            if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
                raise BadInput(
                    f"input.where: {column} stands alone and is {kind}: compare it, or name a column of booleans"
                )
            return condition if pa.types.is_boolean(kind) else Known(column, None)
        case Like():
            return _like(condition, schema)
        case In():
            return _in(condition, schema)
        case Compare():
            left, operator, right = condition.left, condition.operator, condition.right
            if isinstance(right, Column):
                return _sides(left, operator, right, schema)
            return _order(left, operator, right, _type_of(left, schema))
    assert_never(condition)


def _type_of(column: Column, schema: pa.Schema) -> pa.DataType:
    known = {field.name: field.type for field in schema}
    for at, step in enumerate(column.path):
        if step not in known:
            where = f"the column {'.'.join(column.path[:at])!r}" if at else "the input"
            raise BadInput(
                f"input.where names {step!r}{did_you_mean(step, known)}, which {where} does not have: names in a condition are "
                "columns, and texts stand in single quotes"
            )
        kind = known[step]
        if pa.types.is_null(kind):
            return kind
        known = {each.name: each.type for each in kind} if pa.types.is_struct(kind) else {}
    return kind


def _order(column: Column, operator: Operator, constant: Constant, kind: pa.DataType) -> Typed:
    """A comparison with a constant, which may be beside or between the values of the type."""
    if constant.kind == "null" or pa.types.is_null(kind):
        return Known(column, None)
    value = _value(column, constant, kind)
    if not isinstance(value, Fraction):
        return Order(column, operator, _scalar(value, kind), value)
    # The values of the type are whole numbers of its units: those around the constant say the same.
    below = value.numerator // value.denominator
    above = -(-value.numerator // value.denominator)
    whole = {"<": above, ">=": above}.get(operator, below)
    if below != above and operator in ("=", "<>"):
        return Known(column, operator == "<>")
    least, most = _range(kind)
    if least <= whole <= most:
        return Order(column, operator, _scalar(whole, kind), whole)
    is_low = whole < least  # every value is greater than the constant
    return Known(column, operator == "<>" or (operator in ((">", ">=") if is_low else ("<", "<="))))


def _in(condition: In, schema: pa.Schema) -> Typed:
    column, kind = condition.column, _type_of(condition.column, schema)
    has_null = any(each.kind == "null" for each in condition.values)
    given = [each for each in condition.values if each.kind != "null"]
    if pa.types.is_null(kind):
        return Known(column, None)
    orders = [_order(column, "=", each, kind) for each in given]
    found = [each for each in orders if isinstance(each, Order)]
    scalars = [each.scalar for each in found]
    if pa.types.is_floating(kind):
        # Both zeros are equal, and Arrow's sets tell them apart.
        scalars += [_scalar(-each.value, kind) for each in found if each.value == 0]
    if not scalars:
        return Known(column, None if has_null else False)
    values = pa.array([each.as_py() for each in scalars], scalars[0].type)
    return Member(column, values, tuple(each.value for each in found), has_null)


def _sides(left: Column, operator: Operator, right: Column, schema: pa.Schema) -> Typed:
    one, other = _type_of(left, schema), _type_of(right, schema)
    if pa.types.is_null(one) or pa.types.is_null(other):
        return Known(left, None)
    if one != other or not any(is_of(one) for is_of in WORDS):
        raise BadInput(
            f"input.where compares {left}, which is {one}, with {right}, which is {other}: two columns compare "
            "where both have the same type, and no others inside"
        )
    return Sides(left, operator, right)


def _value(
    column: Column, constant: Constant, kind: pa.DataType
) -> Fraction | float | bytes | bool:
    """The constant on the axis of the column: bytes of a text, a float, or units of all other types."""
    types = pa.types
    try:
        match constant.kind, constant.value:
            case "text", str(text) if types.is_string(kind):
                return text.encode()
            case "boolean", bool(value) if types.is_boolean(kind):
                return Fraction(int(value))
            case "number", Decimal() as number:
                if types.is_floating(kind):
                    return _float(number, kind)
                if types.is_integer(kind):
                    return Fraction(number)
                if types.is_decimal(kind):
                    return Fraction(number) * Fraction(10) ** kind.scale
            case "text" | "date" | "timestamp" | "timestamptz" | "time", str(text):
                if (found := _moment(text, constant.kind, kind)) is not None:
                    return found
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"input.where compares {column}, which is {kind}, with {constant.value!r}: {error}"
        ) from error
    words = next((said for is_of, said in WORDS.items() if is_of(kind)), None)
    hint = "IS NULL and IS NOT NULL alone" if words is None else words
    raise BadInput(
        f"input.where compares {column}, which is {kind}, with the {constant}: it takes {hint}"
    )


def _float(number: Decimal, kind: pa.DataType) -> float:
    """The nearest value of the type, as databases do; beyond all of them infinity."""
    found = float(number)
    return float(pa.scalar(found, pa.float64()).cast(kind, safe=False).as_py())


def _moment(text: str, said: str, kind: pa.DataType) -> Fraction | None:
    """A day, a moment or a time of day in units of the type; None where the type has none. A moment without an
    offset is one of UTC where the column has a time zone.
    """
    types = pa.types
    if types.is_time(kind):
        if said not in ("text", "time"):
            return None
        at, nanoseconds = _split(text)
        found = time.fromisoformat(at)
        if found.tzinfo is not None:
            raise ValueError("a time of day has no offset here")
        since = timedelta(hours=found.hour, minutes=found.minute, seconds=found.second)
        return Fraction(since // timedelta(seconds=1) * 10**9 + nanoseconds, NANOSECONDS[kind.unit])
    if said == "time" or not (types.is_date(kind) or types.is_timestamp(kind)):
        return None
    if not MOMENT.fullmatch(text.strip()):
        raise ValueError("write 2024-01-31, 2024-01-31 06:00:00 or 2024-01-31T06:00:00+01:00")
    if said == "date":
        date.fromisoformat(text.strip())
    at, nanoseconds = _split(text)
    moment = datetime.fromisoformat(at)
    offset = moment.utcoffset()
    if offset is not None:
        if types.is_date(kind) or kind.tz is None:
            raise ValueError("the column has no time zone, so leave the offset out")
        moment -= offset
    seconds = (moment.replace(tzinfo=None) - EPOCH) // timedelta(seconds=1)
    unit = (
        DAY if types.is_date32(kind) else 10**6 if types.is_date(kind) else NANOSECONDS[kind.unit]
    )
    return Fraction(seconds * 10**9 + nanoseconds, unit)


def _split(text: str) -> tuple[str, int]:
    """The text without the digits of its second, and these as nanoseconds."""
    found = FRACTION.search(text)
    return FRACTION.sub("", text.strip()), int(found[1].ljust(9, "0")) if found else 0


def _range(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of a type, in its units."""
    types = pa.types
    if types.is_boolean(kind):
        return 0, 1
    if types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    bits = kind.bit_width
    if types.is_unsigned_integer(kind):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def axis(kind: pa.DataType) -> pa.DataType:
    """The type in which values of a type are compared: whole numbers for moments, floats for half floats."""
    types = pa.types
    if types.is_boolean(kind):
        return pa.int8()
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else kind
    return pa.float32() if kind == pa.float16() else kind


def _scalar(value: bytes | int | float, kind: pa.DataType) -> pa.Scalar:
    target = axis(kind)
    if isinstance(value, bytes):
        return pa.scalar(value.decode(), target)
    if pa.types.is_decimal(target):
        return pa.scalar(Decimal((value < 0, _digits(int(value)), -kind.scale)), target)
    return pa.scalar(value, target)


def _digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


# ---------------------------------------------------------------- patterns


def _like(condition: Like, schema: pa.Schema) -> Typed:
    column, kind = condition.column, _type_of(condition.column, schema)
    if pa.types.is_null(kind):
        return Known(column, None)
    if not pa.types.is_string(kind):
        raise BadInput(f"input.where has LIKE for {column}, which is {kind}: LIKE is for texts")
    pattern = condition.pattern
    if condition.ignores_case:
        pattern = pc.utf8_lower(pa.scalar(pattern)).as_py()
    pieces = list(_pieces(pattern, condition.escape))
    literal = "".join(text for text, _ in pieces[: _first_wildcard(pieces)])
    expression = "".join(re.escape(text) if is_literal else text for text, is_literal in pieces)
    found = Matches(
        column,
        rf"\A(?s:{expression})\z",
        b"" if condition.ignores_case else literal.encode(),
        condition.ignores_case,
    )
    try:
        pc.match_substring_regex(pa.array([""]), found.pattern)
    except pa.ArrowException as error:
        raise BadInput(f"input.where has a pattern for {column} that is too large") from error
    return found


def _pieces(pattern: str, escape: str) -> Iterator[tuple[str, bool]]:
    """The characters of a pattern, each with whether it stands for itself; the others as regular expressions."""
    rest = iter(pattern)
    for each in rest:
        if escape and each == escape:
            escaped = next(rest, None)
            if escaped is None:
                raise BadInput(f"input.where: the pattern {pattern!r} ends in its escape character")
            yield escaped, True
        elif each in "%_":
            yield (".*" if each == "%" else "."), False
        else:
            yield each, True


def _first_wildcard(pieces: list[tuple[str, bool]]) -> int:
    return next((at for at, (_, is_literal) in enumerate(pieces) if not is_literal), len(pieces))
