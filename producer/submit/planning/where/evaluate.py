"""A typed condition over rows, in SQL's three-valued logic."""

from functools import reduce
from typing import TypeAlias, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.where.condition import And, Column, Fixed, Holds, IsNull, Not, Operator, Or
from nightshift.producer.submit.planning.where.typed import (
    Known,
    Matches,
    Member,
    Order,
    Sides,
    Typed,
    axis,
)

Answers: TypeAlias = pa.Array | pa.ChunkedArray
"""True, false or null of each row."""


def holds(condition: Typed, table: pa.Table) -> Answers:
    """True for the rows of a table that a condition takes: where it is neither false nor null."""
    return pc.fill_null(answers(condition, table), False)


def answers(condition: Typed, table: pa.Table) -> Answers:
    """What a condition says of each row of a table, which has its columns in the types that it was typed for."""
    match condition:
        case And(parts):
            return reduce(pc.and_kleene, (answers(each, table) for each in parts))
        case Or(parts):
            return reduce(pc.or_kleene, (answers(each, table) for each in parts))
        case Not(of):
            return pc.invert(answers(of, table))
        case Fixed(value):
            return pa.repeat(pa.scalar(value, pa.bool_()), table.num_rows)
        case IsNull(column):
            return pc.is_null(_values(column, table))
        case Holds(column):
            return _values(column, table)
        case Known(column, value):
            said = pa.scalar(value, pa.bool_())
            return pc.if_else(
                pc.is_valid(_values(column, table)), said, pa.scalar(None, pa.bool_())
            )
        case Order(column, operator, scalar):
            return _compared(_on_axis(_values(column, table)), operator, scalar)
        case Sides(left, operator, right):
            one, other = (_on_axis(_values(each, table)) for each in (left, right))
            return _compared(one, operator, other)
        case Member():
            return _is_member(_on_axis(_values(condition.column, table)), condition)
        case Matches(column, pattern, _, ignores_case):
            texts = _values(column, table)
            texts = pc.utf8_lower(texts) if ignores_case else texts
            return pc.match_substring_regex(texts, pattern)
    assert_never(condition)


def _is_member(values: pa.ChunkedArray, condition: Member) -> Answers:
    is_in = pc.is_in(values, condition.values)
    if condition.has_null:
        return pc.if_else(is_in, pa.scalar(True), pa.scalar(None, pa.bool_()))
    return pc.if_else(pc.is_valid(values), is_in, pa.scalar(None, pa.bool_()))


def _values(column: Column, table: pa.Table) -> pa.ChunkedArray:
    values = table.column(column.name)
    for step in column.path[1:]:
        if pa.types.is_null(values.type):
            break
        values = pc.struct_field(values, [step])
    return values


def _on_axis(values: pa.ChunkedArray) -> pa.ChunkedArray:
    target = axis(values.type)
    return values if target == values.type else values.cast(target)


def _compared(
    left: pa.ChunkedArray, operator: Operator, right: pa.ChunkedArray | pa.Scalar
) -> Answers:
    """NaN is equal to itself and greater than every other number, as in Postgres and DuckDB."""
    match operator:
        case "=":
            return _equal(left, right)
        case "<>":
            return pc.invert(_equal(left, right))
        case "<":
            return _less(left, right)
        case ">=":
            return pc.invert(_less(left, right))
        case ">":
            return _less(right, left)
        case "<=":
            return pc.invert(_less(right, left))
    assert_never(operator)


def _equal(left: pa.ChunkedArray | pa.Scalar, right: pa.ChunkedArray | pa.Scalar) -> Answers:
    found = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return found
    return pc.or_(found, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: pa.ChunkedArray | pa.Scalar, right: pa.ChunkedArray | pa.Scalar) -> Answers:
    found = pc.less(left, right)
    if not pa.types.is_floating(left.type):
        return found
    return pc.or_(found, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
