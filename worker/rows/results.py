"""Outcomes to the table of a part: one line for each row of the batch, answered or not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.part_rows import column_sum, error_column, row_errors
from nightshift.common.formats.values import to_list
from nightshift.common.ledger.batches.records import Tokens
from nightshift.common.ledger.jobs.answer_counts import NOTHING, AnswerCounts
from nightshift.common.public_text import left_out, with_last_names
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.spec import ANSWERED_BY, PARSED, RESERVED_ANSWERS, GenerateTask, JobSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from nightshift.worker.rows.answer_counts import counted
from nightshift.worker.rows.columns import answer_column, parsed_column


@dataclass(slots=True)
class RowResults:
    """The outcomes of a batch's rows so far, and the failures of rows that no engine got.

    `passed` holds the id and pass-through columns, aligned with `row_index`. `own` is that of the job.
    """

    row_index: Sequence[int]
    passed: pa.Table
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    own: Sequence[str] | None = None

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

    `spent` are the tokens of the rows that ran, where the table has kept rows beside them. Of the rows
    that ran `rows_shared` have the answer of another one, `cached_tokens` of the prompts were in the
    engine's cache, and `reasoning_tokens` of the answers are thoughts. `answered` counts their answers.
    """

    table: pa.Table
    errors: list[RowError]
    prompt_tokens: int
    output_tokens: int
    spent: Tokens | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    rows_shared: int = 0
    answered: AnswerCounts = NOTHING


def part_table(spec: JobSpec, schema: pa.Schema, results: RowResults) -> PartTable:
    """One line for each finished row, under the job's schema.

    An answer that cannot be cast to the schema, or that has a column the schema lacks, is a row
    error `bad_type`.
    """
    rows = results.finished()
    position = {row: at for at, row in enumerate(results.row_index)}
    # A row that is not in `results` has null in its passed columns.
    passed = results.passed.take(pa.array([position.get(row) for row in rows], pa.int64()))
    failures = results.failures | _failures(schema, results)
    _refuse_changed_columns(results, rows, passed, failures)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: passed.column(name).cast(schema.field(name).type)
        for name in passed.column_names
        if name in schema.names
    }
    columns["row_index"] = pa.array(rows, pa.int64())
    columns.update(_answer_columns(spec, schema, results, rows, columns.keys(), failures))
    # Tokens of a failed row still count. Columns of a refusal describe the failure.
    kept = {"row_index", "prompt_tokens", "output_tokens", *spec.passed_columns}
    blank = {row for row in failures if not isinstance(results.outcomes.get(row), Refusal)}
    if blank:
        keep = pa.array([row not in blank for row in rows])
        for name in columns.keys() - kept:
            column = columns[name]
            columns[name] = pc.if_else(keep, column, pa.scalar(None, column.type))
    columns["error"] = error_column([failures.get(row) for row in rows])
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    answers = [each for each in results.outcomes.values() if isinstance(each, Answer)]
    return PartTable(
        table=table,
        errors=row_errors(table, spec.input.id),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in results.outcomes.values()),
        output_tokens=sum(outcome.output_tokens for outcome in results.outcomes.values()),
        cached_tokens=sum(outcome.cached_tokens for outcome in results.outcomes.values()),
        reasoning_tokens=sum(outcome.reasoning_tokens for outcome in results.outcomes.values()),
        rows_shared=sum(answer.answered_by is not None for answer in answers),
        answered=counted(spec.task, table),
    )


def with_kept_rows(new: PartTable, table: pa.Table, id_column: str | None) -> PartTable:
    """The part of `table`, which has the rows of `new` and the kept rows of an earlier part."""
    return replace(
        new,
        table=table,
        errors=row_errors(table, id_column),
        prompt_tokens=column_sum(table, "prompt_tokens"),
        output_tokens=column_sum(table, "output_tokens"),
        spent=Tokens(new.prompt_tokens, new.output_tokens),
    )


def _failures(schema: pa.Schema, results: RowResults) -> dict[int, Failure]:
    """The refusals, and the answers with a column that the job's output cannot have."""
    failures: dict[int, Failure] = {}
    known = set(schema.names)
    own = known.difference(RESERVED_ANSWERS)
    for row, outcome in results.outcomes.items():
        if not isinstance(outcome, Answer):
            message = outcome.message
            if outcome.of_library:
                message = left_out(message, results.own)
            elif outcome.kind is RowErrorKind.FUNCTION_ERROR:
                message = with_last_names(message, results.own)
            failures[row] = Failure.of(outcome.kind, message)
            continue
        if own.issuperset(outcome.columns):
            continue
        reserved = [name for name in outcome.columns if name in RESERVED_ANSWERS]
        unknown = [name for name in outcome.columns if name not in known]
        if reserved or unknown:
            why = "is reserved" if reserved else "the job's output does not have"
            message = f"the answer has the column {(reserved or unknown)[0]!r}, which {why}"
            failures[row] = Failure.of(RowErrorKind.BAD_TYPE, message)
    return failures


def _refuse_changed_columns(
    results: RowResults, rows: Sequence[int], passed: pa.Table, failures: dict[int, Failure]
) -> None:
    """A function may return a passed column, but not with another value."""
    names = set(passed.column_names)
    values: dict[str, list[Any]] = {}
    for at, row in enumerate(rows):
        outcome = results.outcomes.get(row)
        if not isinstance(outcome, Answer) or names.isdisjoint(outcome.columns) or row in failures:
            continue
        for name in names & outcome.columns.keys():
            if name not in values:
                values[name] = to_list(passed.column(name))
            if not _is_same(values[name][at], outcome.columns[name]):
                failures[row] = Failure.of(
                    RowErrorKind.BAD_TYPE,
                    f"the answer changes the column {name!r}, which is passed through from the "
                    "input: return it under another name",
                )


def _is_same(value: Any, returned: Any) -> bool:
    """Whether a value came back unchanged; NaN equals NaN, and an array its list."""
    if isinstance(returned, np.ndarray | np.generic):
        returned = returned.tolist()
    if isinstance(returned, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(returned)
            and all(map(_is_same, value, returned))
        )
    if isinstance(returned, Mapping):
        return (
            isinstance(value, Mapping)
            and value.keys() == returned.keys()
            and all(_is_same(value[key], each) for key, each in returned.items())
        )
    try:
        return bool(value == returned or (value != value and returned != returned))
    except Exception:  # comparing a value of the function's own type may raise
        return False


def _answer_columns(
    spec: JobSpec,
    schema: pa.Schema,
    results: RowResults,
    rows: Sequence[int],
    known: Collection[str],
    failures: dict[int, Failure],
) -> dict[str, pa.Array]:
    """The other columns of the schema; `failures` gets the values that do not fit their column."""
    scalars = spec.task.parsed if isinstance(spec.task, GenerateTask) else None
    outcomes = [results.outcomes.get(row) for row in rows]
    columns: dict[str, pa.Array] = {}
    for each in schema:
        if each.name in known or each.name == "error":
            continue
        if each.name == PARSED and scalars is not None:
            texts = [_value(outcome, "output") for outcome in outcomes]
            columns[PARSED], misfits = parsed_column(each, scalars, texts)
        else:
            values = [_value(outcome, each.name) for outcome in outcomes]
            columns[each.name], misfits = answer_column(each, values)
        for position, failure in misfits.items():
            failures.setdefault(rows[position], failure)
    return columns


def _value(outcome: Outcome | None, column: str) -> Any:
    if outcome is None:
        return None
    if column in ("prompt_tokens", "output_tokens"):
        return getattr(outcome, column)
    if column == "reasoning_tokens" and column not in outcome.columns:
        return outcome.reasoning_tokens
    if column == ANSWERED_BY:
        return outcome.answered_by if isinstance(outcome, Answer) else None
    if column == "finish_reason":
        return outcome.finish_reason if isinstance(outcome, Answer) else None
    return outcome.columns.get(column)
