"""Row groups of a Parquet file that cannot match a condition, by the statistics of the footer, as pyarrow reads them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

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
    number_literal,
)
from nightshift.producer.submit.planning.where.column_types import type_of

COMPARISONS: Mapping[Operator, Callable[[Any, Any], Any]] = {
    "=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip

NEGATED: Mapping[Operator, Operator] = {
    "=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<",
}  # fmt: skip

FALSE_FOR_NAN: frozenset[Operator] = frozenset(("=", "<", "<="))
"""Comparisons with a number that are false for NaN, which SQL orders above every number."""

MOST_COMPARISONS = 200
"""A condition with more comparisons prunes nothing: Arrow's simplification of expressions recurses, and crashes the
process with some thousands of them. A list of constants counts as one.
"""

ROUNDING = {pa.float32(): 1e-6, pa.float64(): 1e-12}
"""Relative difference that is larger than that between a constant as Python and as DuckDB round it to the type."""

NANOSECONDS = re.compile(r"\.\d{7}")


def matching(
    condition: Condition, metadata: pq.FileMetaData, path: Mapping[str, pa.Scalar]
) -> Sequence[int]:
    """Return the numbers of the row groups that may have a row for which the condition is true.

    `path` has the values of columns that are in the path of the file and not in the file. If pyarrow refuses the
    condition, all row groups are returned.
    """
    everything = range(metadata.num_row_groups)
    if _comparisons(condition) > MOST_COMPARISONS:
        return everything
    # A fragment of the footer alone: the file is not opened again.
    footer = pa.BufferOutputStream()
    metadata.write_metadata_file(footer)
    known = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in path.items()
    ]
    fragment = ds.ParquetFileFormat().make_fragment(
        footer.getvalue(), partition_expression=reduce(and_, known, pc.scalar(True))
    )
    of_path = pa.schema([(name, value.type) for name, value in path.items()])
    schema = pa.schema([*fragment.physical_schema, *of_path])
    expression = _expression(condition, False, schema)
    if expression is None:
        return everything
    try:
        return [group.id for group in fragment.subset(expression, schema=schema).row_groups]
    except pa.ArrowException:
        return everything


def _comparisons(condition: Condition) -> int:
    match condition:
        case Not(of):
            return _comparisons(of)
        case And(parts) | Or(parts):
            return sum(map(_comparisons, parts))
    return 1


def _expression(condition: Condition, negated: bool, schema: pa.Schema) -> pc.Expression | None:
    """Return an expression that is true for each row for which the condition (or NOT of it, if `negated`) is true; None
    if only the rows themselves tell.

    NOT is moved to the leaves, where it turns the operator, so that leaving a leaf out only takes more rows.
    """
    match condition:
        case Not(of):
            return _expression(of, not negated, schema)
        case And(parts) | Or(parts):
            children = [_expression(part, negated, schema) for part in parts]
            known = [child for child in children if child is not None]
            if isinstance(condition, And) is not negated:
                return reduce(and_, known) if known else None
            return reduce(or_, known) if len(known) == len(children) else None
        case Fixed(value):
            return pc.scalar(value is not None and value is not negated)
        case IsNull(column):
            return _field(column).is_valid() if negated else _field(column).is_null()
        case Holds(column):
            return ~_field(column) if negated else _field(column)
        case Like():
            return None if negated else _beginning(condition, schema)
        case In(column, values):
            return _member(column, values, negated, schema)
        case Compare(left, operator, right):
            if isinstance(right, Column):
                return None
            return _compared(left, NEGATED[operator] if negated else operator, right, schema)
    assert_never(condition)


def _field(column: Column) -> pc.Expression:
    return pc.field(*column.path)


def _compared(
    column: Column, operator: Operator, constant: Constant, schema: pa.Schema
) -> pc.Expression | None:
    kind = type_of(column, schema)
    if constant.kind == "null":
        return pc.scalar(False)
    if pa.types.is_floating(kind):
        return _compared_float(_field(column), operator, constant, kind)
    value = _scalar(constant, kind)
    return None if value is None else COMPARISONS[operator](_field(column), value)


def _compared_float(
    field: pc.Expression, operator: Operator, constant: Constant, kind: pa.DataType
) -> pc.Expression | None:
    number = float(constant.value) if isinstance(constant.value, Decimal) else math.nan
    if operator not in FALSE_FOR_NAN or kind not in ROUNDING or not math.isfinite(number):
        return None  # NaN is in no statistics
    slack = abs(number) * ROUNDING[kind]
    below = field <= pa.scalar(number + slack, kind)
    return below & (field >= pa.scalar(number - slack, kind)) if operator == "=" else below


def _member(
    column: Column, values: Sequence[Constant], negated: bool, schema: pa.Schema
) -> pc.Expression | None:
    given = [value for value in values if value.kind != "null"]
    if negated:
        if len(given) < len(values):
            return pc.scalar(False)  # NOT IN a list with a null is never true
        return None
    kind = type_of(column, schema)
    if pa.types.is_floating(kind):
        return None  # -0.0 is not in Arrow's set of 0.0
    scalars = [scalar for value in given if (scalar := _scalar(value, kind)) is not None]
    if not given:
        return pc.scalar(False)
    if len(scalars) < len(given):
        return None
    return _field(column).isin(pa.array([each.as_py() for each in scalars], kind))


def _beginning(condition: Like, schema: pa.Schema) -> pc.Expression | None:
    """Return the range of texts that have the literal beginning of a pattern. Texts compare by their bytes."""
    pattern, escape = condition.pattern, condition.escape
    special = [at for at, sign in enumerate(pattern) if sign in ("%", "_", escape)]
    prefix = pattern[: special[0]] if special else pattern
    if condition.ignores_case or not prefix:
        return None
    # The next text that does not begin so; surrogates are not characters.
    code = ord(prefix[-1]) + 1
    following = "" if code in (0xD800, 0x110000) else prefix[:-1] + chr(code)
    first = _compared(condition.column, ">=", Constant("text", prefix), schema)
    stop = _compared(condition.column, "<", Constant("text", following), schema)
    return first if first is None or stop is None or not following else first & stop


def _scalar(constant: Constant, kind: pa.DataType) -> pa.Scalar | None:
    """Return the constant as a value of the column's type; None if the type does not have exactly this value."""
    try:
        value = _python_value(constant, kind)
        scalar = pa.scalar(value, kind)
        return scalar if scalar.as_py() == value else None
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


def _python_value(constant: Constant, kind: pa.DataType) -> Any:
    """Return the constant as pyarrow takes it; ValueError if Python cannot hold it."""
    match constant.value:
        case Decimal() as number:
            if pa.types.is_decimal(kind):
                if "E" in number_literal(number):
                    raise ValueError(number)  # DuckDB compares it as a DOUBLE
                return number
            whole = int(number)
            if whole != number:
                raise ValueError(number)
            return whole
        case str(text) if pa.types.is_temporal(kind) and NANOSECONDS.search(text):
            raise ValueError(text)  # Python's datetime drops these digits
        case str(text) if pa.types.is_date(kind):
            return date.fromisoformat(text.strip())
        case str(text) if pa.types.is_time(kind):
            return time.fromisoformat(text.strip())
        case str(text) if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text.strip())
            is_local = moment.tzinfo is None and kind.tz is not None
            return moment.replace(tzinfo=UTC) if is_local else moment
        case value:
            return value
