"""Outcomes to the table of a part: one line for each row of the batch, answered or not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.output_parts import column_sum, error_column, row_errors
from nightshift.common.formats.values import arrow_value, is_kept, to_list
from nightshift.common.ledger.batches.records import Tokens
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.spec import PARSED, RESERVED_ANSWERS, GenerateTask, JobSpec
from nightshift.common.spec.json_schema import Scalar
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from nightshift.worker.rows import strict_json

UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError, RecursionError)
"""What Arrow raises for a value that a type cannot hold; UnicodeError is a ValueError."""


@dataclass(slots=True)
class RowResults:
    """What is known of a batch's rows so far; rows ascend in the table that it becomes.

    `passed` holds the id and pass-through columns, aligned with `row_index`.
    """

    row_index: Sequence[int]
    passed: pa.Table
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def finished(self) -> list[int]:
        """Row indices that have an outcome or a failure, ascending."""
        return sorted({*self.outcomes, *self.failures})

    def answers(self) -> list[Mapping[str, Any]]:
        """The columns of every answered row, by row index."""
        return [
            outcome.columns
            for _, outcome in sorted(self.outcomes.items())
            if isinstance(outcome, Answer)
        ]


@dataclass(frozen=True, slots=True)
class PartTable:
    """The table of a part with what the ledger counts: errors and tokens.

    `spent` are the tokens of the rows that ran, where others stand beside them.
    """

    table: pa.Table
    errors: list[RowError]
    prompt_tokens: int
    output_tokens: int
    spent: Tokens | None = None


def part_table(spec: JobSpec, schema: pa.Schema, results: RowResults) -> PartTable:
    """One line for each finished row, under the job's schema.

    An answer that cannot be cast to it, or that has a column the schema lacks, is a row error
    `bad_type`.
    """
    rows = results.finished()
    failures = _failures(schema, results, spec)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {"row_index": pa.array(rows, pa.int64())}
    columns.update(_passed(results, rows, schema))
    scalars = spec.task.parsed if isinstance(spec.task, GenerateTask) else None
    for column in schema:
        if column.name in columns or column.name == "error":
            continue
        if column.name == PARSED and scalars is not None:
            columns[PARSED] = _parsed(column, scalars, results, rows, failures)
        else:
            columns[column.name] = _answered(column, results, rows, failures)
    kept = {"row_index", "prompt_tokens", "output_tokens", *spec.passed_columns}
    # A refusal has no answer, and what its columns say of the failure stays.
    unfit = {row for row in failures if not isinstance(results.outcomes.get(row), Refusal)}
    for name in columns.keys() - kept:
        columns[name] = _blanked(columns[name], rows, unfit)
    columns["error"] = error_column([failures.get(row) for row in rows])
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return PartTable(
        table=table,
        errors=row_errors(table, spec.input.id),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in results.outcomes.values()),
        output_tokens=sum(outcome.output_tokens for outcome in results.outcomes.values()),
    )


def with_kept_rows(new: PartTable, table: pa.Table, id_column: str | None) -> PartTable:
    """The part of `table`, which has the rows of `new` and the kept rows of an earlier part."""
    return PartTable(
        table=table,
        errors=row_errors(table, id_column),
        prompt_tokens=column_sum(table, "prompt_tokens"),
        output_tokens=column_sum(table, "output_tokens"),
        spent=Tokens(new.prompt_tokens, new.output_tokens),
    )


def _failures(schema: pa.Schema, results: RowResults, spec: JobSpec) -> dict[int, Failure]:
    failures = dict(results.failures)
    known = set(schema.names)
    passed = set(spec.passed_columns)
    for row, outcome in results.outcomes.items():
        if not isinstance(outcome, Answer):
            failures[row] = Failure.of(outcome.kind, outcome.message)
            continue
        strange = [name for name in outcome.columns if name not in known]
        taken = [name for name in outcome.columns if name in RESERVED_ANSWERS]
        if strange or taken:
            why = "is reserved" if taken else "the job's output does not have"
            failures[row] = Failure.of(
                RowErrorKind.BAD_TYPE,
                f"the answer has the column {(taken or strange)[0]!r}, which {why}",
            )
    _refuse_changed_inputs(results, passed, failures)
    return failures


def _refuse_changed_inputs(
    results: RowResults, passed: set[str], failures: dict[int, Failure]
) -> None:
    """A function may hand passed columns back, but not with another value."""
    position = {row: at for at, row in enumerate(results.row_index)}
    columns: dict[str, list[Any]] = {}
    for row, outcome in results.outcomes.items():
        if not isinstance(outcome, Answer) or row in failures:
            continue
        for name in passed & outcome.columns.keys():
            if name not in columns:
                columns[name] = to_list(results.passed.column(name))
            if not _is_same(columns[name][position[row]], outcome.columns[name]):
                failures[row] = Failure.of(
                    RowErrorKind.BAD_TYPE,
                    f"the answer changes the column {name!r}, which is passed through from the "
                    "input: return it under another name",
                )


def _is_same(mine: Any, given: Any) -> bool:
    """Whether a value came back as it was; NaN is NaN, and an array its list."""
    if isinstance(given, np.ndarray | np.generic):
        given = given.tolist()
    if isinstance(given, list | tuple):
        return (
            isinstance(mine, list | tuple)
            and len(mine) == len(given)
            and all(map(_is_same, mine, given))
        )
    if isinstance(given, Mapping):
        return (
            isinstance(mine, Mapping)
            and mine.keys() == given.keys()
            and all(_is_same(mine[key], value) for key, value in given.items())
        )
    try:
        return bool(mine == given or (mine != mine and given != given))
    except Exception:  # a value of the function's own compares as it likes
        return False


def _passed(results: RowResults, rows: Sequence[int], schema: pa.Schema) -> dict[str, pa.Array]:
    position = {row: at for at, row in enumerate(results.row_index)}
    taken = pa.array([position.get(row) for row in rows], pa.int64())
    return {
        name: _combined(results.passed.column(name).take(taken)).cast(schema.field(name).type)
        for name in results.passed.column_names
        if name in schema.names
    }


def _combined(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _answered(
    column: pa.Field, results: RowResults, rows: Sequence[int], failures: dict[int, Failure]
) -> pa.Array:
    """One output column; the values that do not fit its type become failures of their rows."""
    values = [_value(results.outcomes.get(row), column.name) for row in rows]
    if pa.types.is_fixed_size_list(column.type) and pa.types.is_floating(column.type.value_type):
        return _vectors(column, values, rows, failures)
    try:
        # Python stops at a value without end; Arrow would take the process down with it.
        nested = any(isinstance(value, dict | list | tuple | np.ndarray) for value in values)
        found = pa.array(arrow_value(values) if nested else values)
        if found.type == column.type or (_is_plain(found.type) and _is_plain(column.type)):
            return found.cast(column.type)  # a safe cast: it refuses what would be cut
    except UNFIT:
        pass
    return _one_by_one(column, values, rows, failures)


def _vectors(
    column: pa.Field, values: list[Any], rows: Sequence[int], failures: dict[int, Failure]
) -> pa.Array:
    """Vectors of one length, without a Python object for each number."""
    width = column.type.list_size
    numbers = np.zeros((len(values), width), column.type.value_type.to_pandas_dtype())
    missing = np.ones(len(values), bool)
    for at, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value is None:
            continue
        vector = _vector(value)
        if vector is not None and vector.shape == (width,):
            numbers[at], missing[at] = vector, False
        else:
            shown = _shown(value) if vector is None else f"a vector of {len(vector)}"
            message = f"the column {column.name!r} has {width} numbers, and this is {shown}"
            failures.setdefault(row, Failure.of(RowErrorKind.BAD_TYPE, message))
    flat = pa.array(numbers.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=column.type, mask=pa.array(missing))


def _vector(value: Any) -> np.ndarray | None:
    """The value as an array of numbers; None when it is none."""
    try:
        vector = np.asarray(value)
    except UNFIT:
        return None
    return vector if vector.dtype.kind in "fiu" and vector.ndim == 1 else None


def _parsed(
    column: pa.Field,
    scalars: Mapping[str, Scalar],
    results: RowResults,
    rows: Sequence[int],
    failures: dict[int, Failure],
) -> pa.Array:
    """The answers' JSON as a struct.

    It is made here, not by the engines: the job's stored schema says whether there is the column,
    and a job from before it has none.
    """
    values: list[Any] = []
    for row in rows:
        text = _value(results.outcomes.get(row), "output")
        value = None
        try:
            if isinstance(text, str):
                value = strict_json.typed(strict_json.loads(text), scalars)
        except ValueError as error:
            failures.setdefault(
                row,
                Failure.of(RowErrorKind.INVALID_OUTPUT, f"the answer cannot be parsed: {error}"),
            )
        values.append(value)
    return pa.array(values, column.type)


def _is_plain(kind: pa.DataType) -> bool:
    """Types between which Arrow's safe cast loses nothing without saying so."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_null(kind)
        or pa.types.is_string(kind)
    )


def _one_by_one(
    column: pa.Field, values: list[Any], rows: Sequence[int], failures: dict[int, Failure]
) -> pa.Array:
    good: list[Any] = []
    for row, value in zip(rows, values, strict=True):
        try:
            good.append(_cast(arrow_value(value), column.type))
        except UNFIT:
            good.append(None)
            failures.setdefault(
                row,
                Failure.of(
                    RowErrorKind.BAD_TYPE,
                    f"the column {column.name!r} is {column.type}, and {_shown(value)} is not",
                ),
            )
    return pa.array(good, column.type)


def _shown(value: Any) -> str:
    """Plain values as they are, others by their type: addresses and depths help nobody."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)[:100]
    return f"a {type(value).__name__}"


def _cast(value: Any, wanted: pa.DataType) -> Any:
    """The value as `wanted` holds it; one of UNFIT when it cannot hold all of it."""
    if value is None:
        return None
    found = pa.scalar(value)
    if _is_plain(found.type) and _is_plain(wanted):
        return found.cast(wanted).as_py()
    if pa.types.is_boolean(found.type) != pa.types.is_boolean(wanted):
        raise TypeError("a truth value is no number and no text")
    try:
        got = pa.scalar(value, wanted).as_py()
    except UNFIT:
        got = found.cast(wanted).as_py()
    if not is_kept(value, got):
        raise ValueError("a part of the value would be lost")
    return got


def _value(outcome: Outcome | None, name: str) -> Any:
    if outcome is None:
        return None
    if name in ("prompt_tokens", "output_tokens"):
        return getattr(outcome, name)
    if name == "finish_reason":
        return outcome.finish_reason if isinstance(outcome, Answer) else None
    return outcome.columns.get(name)


def _blanked(column: pa.Array, rows: Sequence[int], unfit: Collection[int]) -> pa.Array:
    """A row whose answer does not fit carries no output, though its tokens still count."""
    if not unfit:
        return column
    keep = pa.array([row not in unfit for row in rows])
    return pc.if_else(keep, column, pa.scalar(None, column.type))
