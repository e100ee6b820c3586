"""Whether any row of a group can match a condition, by what is known of the values of its columns. Where
anything is unsure, a row can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import assert_never

from nightshift.common.where.condition import And, Column, Fixed, Holds, IsNull, Not, Operator, Or
from nightshift.producer.submit.planning.where.typed import (
    Known,
    Matches,
    Member,
    Order,
    Sides,
    Typed,
)

Value = bytes | int | float


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the values of one column in a group of `rows` rows.

    `nulls` counts them, None where nobody did. No value is below `low` or, unless there may be a NaN or `high`
    is the beginning of a longer text, above `high`; None where nobody knows. They are on the axis of the column,
    see `Order.value`.
    """

    rows: int
    nulls: int | None = None
    low: Value | None = None
    high: Value | None = None
    may_be_nan: bool = False


Known_ = Callable[[Column], Facts | None]
"""Says what is known of a column; None for nothing."""

Answer = bool | None

ANY: frozenset[Answer] = frozenset((True, False, None))

OPERATORS: dict[Operator, frozenset[int]] = {
    "=": frozenset((0,)),
    "<>": frozenset((-1, 1)),
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
    ">": frozenset((1,)),
    ">=": frozenset((0, 1)),
}
"""How a value may stand to the constant where an operator says true."""


def can_match(condition: Typed, known: Known_) -> bool:
    """False only where no row of the group can match."""
    return True in possible(condition, known)


def possible(condition: Typed, known: Known_) -> frozenset[Answer]:
    """What a condition can say of rows of the group, and maybe more."""
    match condition:
        case And(parts):
            return _combined(False, [possible(each, known) for each in parts])
        case Or(parts):
            return _combined(True, [possible(each, known) for each in parts])
        case Not(of):
            inner = possible(of, known)
            return frozenset(None if each is None else not each for each in inner)
        case Fixed(value):
            return frozenset((value,))
        case Sides():
            return ANY
        case IsNull(column):
            return _of_nulls(known(column))
        case Known(column, value):
            return _with_nulls(frozenset((value,)), known(column))
        case Holds(column):
            facts = known(column)
            return _with_nulls(_ordered(facts, "=", 1), facts)
        case Order(column, operator, _, value):
            facts = known(column)
            return _with_nulls(_ordered(facts, operator, value), facts)
        case Member(column, _, keys, has_null):
            facts = known(column)
            found = any(True in _ordered(facts, "=", key) for key in keys)
            said: set[Answer] = {None if has_null else False}
            return _with_nulls(frozenset(said | {True} if found else said), facts)
        case Matches(column, _, prefix, _):
            facts = known(column)
            found = facts is None or _may_begin(facts, prefix)
            return _with_nulls(frozenset((True, False) if found else (False,)), facts)
    assert_never(condition)


def _combined(decisive: bool, parts: list[frozenset[Answer]]) -> frozenset[Answer]:
    """What AND (decided by false) and OR (by true) can say of such parts."""
    found = parts[0]
    for part in parts[1:]:
        found = frozenset(
            decisive if decisive in pair else None if None in pair else not decisive
            for pair in product(found, part)
        )
    return found


def _of_nulls(facts: Facts | None) -> frozenset[Answer]:
    if facts is None or facts.nulls is None:
        return frozenset((True, False))
    said = {True} if facts.nulls else set()
    return frozenset(said | {False} if facts.nulls < facts.rows else said)


def _with_nulls(said: frozenset[Answer], facts: Facts | None) -> frozenset[Answer]:
    """What is said of values, and null for nulls."""
    if facts is None or facts.nulls is None:
        return said | {None}
    if facts.nulls >= facts.rows:
        return frozenset((None,))
    return said | {None} if facts.nulls else said


def _ordered(facts: Facts | None, operator: Operator, value: Value) -> frozenset[Answer]:
    stands = _stands(facts, value)
    wanted = OPERATORS[operator]
    found: set[Answer] = set()
    if stands & wanted:
        found.add(True)
    if stands - wanted:
        found.add(False)
    return frozenset(found)


def _stands(facts: Facts | None, value: Value) -> set[int]:
    """How values of the group may stand to this one: below (-1), equal, above (1)."""
    if facts is None or facts.low is None or facts.high is None:
        return {-1, 0, 1}
    low, high = facts.low, facts.high
    found = set()
    if low < value:  # type: ignore[operator]
        found.add(-1)
    # The greatest text of a group may have been cut off.
    is_longer = isinstance(value, bytes) and isinstance(high, bytes) and value.startswith(high)
    if low <= value and (value <= high or is_longer):  # type: ignore[operator]
        found.add(0)
    if high > value or is_longer or facts.may_be_nan:  # type: ignore[operator]
        found.add(1)
    return found


def _may_begin(facts: Facts, prefix: bytes) -> bool:
    """Whether a text of the group can begin with the prefix."""
    low, high = facts.low, facts.high
    if not isinstance(low, bytes) or not isinstance(high, bytes):
        return True
    is_below = high < prefix and not prefix.startswith(high)
    return not is_below and not (low > prefix and not low.startswith(prefix))
