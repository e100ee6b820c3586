"""Evaluation of a condition by DuckDB. Only the parsed tree is run, printed back as SQL: never the user's text."""

from collections.abc import Mapping
from decimal import Decimal
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nightshift.common.errors import BadInput
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
    column_paths,
    number_literal,
)
from nightshift.common.where.parse import SESSION
from nightshift.producer.submit.planning.where.column_types import check, is_comparable

CAST_NAMES: Mapping[Kind, str] = {
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}
"""Constants that are printed with a cast. A time of day is printed as a text, which takes the unit of the column."""


class Evaluator:
    """A condition over rows with the types of `schema`. Threads may share one."""

    def __init__(self, condition: Condition, schema: pa.Schema) -> None:
        """Raise BadInput if the condition does not fit the schema."""
        import duckdb  # most plans have no condition

        check(condition, schema)
        self._columns = column_paths(condition)
        # Generated names: DuckDB compares identifiers without case.
        names = {column: f"c{number}" for number, column in enumerate(self._columns)}
        self._sql = f"SELECT {_printed(condition, names)} AS answer FROM given"
        self._database = duckdb.connect(config=dict(SESSION))
        self._database.execute("SET TimeZone = 'UTC'; SET lock_configuration = true")
        # A constant that DuckDB cannot convert fails here, at one row of nulls, not at the first row of the input.
        used = [field for field in schema if field.name in {each.name for each in self._columns}]
        self.answers(pa.table([pa.nulls(1, field.type) for field in used], pa.schema(used)))

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return True for each row of `table` for which the condition is true: neither false nor null."""
        answers = self.answers(table)
        return np.asarray(pc.fill_null(answers, False).to_numpy(zero_copy_only=False), np.bool_)

    def answers(self, table: pa.Table) -> pa.ChunkedArray:
        """Return true, false or null for each row of `table`, which has the columns of the condition.

        Raises BadInput for a value that DuckDB cannot compare.
        """
        import duckdb

        values = [_values(column, table) for column in self._columns]
        rows = pa.table(
            [*values, pa.nulls(table.num_rows)], [*(f"c{at}" for at in range(len(values))), "rows"]
        )
        try:
            with self._database.cursor() as cursor:
                cursor.register("given", rows)
                return cursor.sql(self._sql).to_arrow_table().column("answer").cast(pa.bool_())
        except duckdb.Error as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise BadInput(f"input.where cannot be evaluated: {first_line}") from error


def _values(column: Column, table: pa.Table) -> pa.ChunkedArray:
    """Return the values of a column or of a field inside it, of a type that DuckDB has."""
    values = table.column(column.name)
    for name in column.path[1:]:
        if pa.types.is_null(values.type):
            break
        values = pc.struct_field(values, [name])
    if pa.types.is_float16(values.type):
        return values.cast(pa.float32())
    if is_comparable(values.type) or pa.types.is_null(values.type):
        return values
    return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))  # for IS NULL


def _printed(condition: Condition, names: Mapping[Column, str]) -> str:
    match condition:
        case And(parts) | Or(parts):
            word = " AND " if isinstance(condition, And) else " OR "
            return "(" + word.join(_printed(part, names) for part in parts) + ")"
        case Not(of):
            return f"(NOT {_printed(of, names)})"
        case Fixed(value):
            return "CAST(NULL AS BOOLEAN)" if value is None else str(value).upper()
        case IsNull(column):
            return f"({names[column]} IS NULL)"
        case Holds(column):
            return names[column]
        case Like(column, pattern, escape, ignores_case):
            word = "ILIKE" if ignores_case else "LIKE"
            ending = f" ESCAPE {_quoted(escape)}" if escape else ""
            return f"({names[column]} {word} {_quoted(pattern)}{ending})"
        case In(column, values):
            return f"({names[column]} IN ({', '.join(map(_constant, values))}))"
        case Compare(left, operator, right):
            other = names[right] if isinstance(right, Column) else _constant(right)
            return f"({names[left]} {operator} {other})"
    assert_never(condition)


def _constant(constant: Constant) -> str:
    match constant.kind:
        case "null":
            return "NULL"
        case "boolean":
            return str(constant.value).upper()
        case "number":
            assert isinstance(constant.value, Decimal)
            return f"({number_literal(constant.value)})"
        case kind if kind in CAST_NAMES:
            return f"CAST({_quoted(str(constant.value))} AS {CAST_NAMES[kind]})"
    return _quoted(str(constant.value))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
