"""What a part is called, which columns it has, and how its table is put together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.formats.arrow_types import arrow_type
from nightshift.common.formats.values import arrow_value, to_list
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.spec import (
    PARSED,
    RESERVED_ANSWERS,
    ClassifyTask,
    EmbedTask,
    GenerateTask,
    JobSpec,
    RequestsTask,
    ScoreTask,
)
from nightshift.common.spec.json_schema import Scalar
from nightshift.common.states import RowErrorKind
from nightshift.common.text import kept_message

STAGING = "_attempts"
"""Folder of parts that Postgres does not name yet, beside the finished ones."""

MANIFEST = "_manifest.json"

JUDGED = "_judged"
"""Folder of the rows that a judge's job reads, beside its parts."""

PROMPT_TOKENS = pa.field("prompt_tokens", pa.int32())

TOKENS = (PROMPT_TOKENS, pa.field("output_tokens", pa.int32()))

ERROR_TYPE = pa.struct([pa.field("kind", pa.string()), pa.field("message", pa.string())])


BARE = "-bare"
"""In the name of a part that was written before the columns of its function were known."""


def part_name(
    seq: int, batch_id: int | None, attempt: int, suffix: str, *, bare: bool = False
) -> str:
    """part-000012-a3.parquet; children of a split carry their batch id beside the root's seq."""
    child = "" if batch_id is None else f"-b{batch_id}"
    return f"part-{seq:06d}{child}-a{attempt}{BARE if bare else ''}.{suffix}"


def staged(output_uri: str, name: str) -> str:
    """Where an attempt writes its part."""
    return f"{output_uri.rstrip('/')}/{STAGING}/{name}"


def final(output_uri: str, name: str) -> str:
    """Where a part lies once Postgres named it."""
    return f"{output_uri.rstrip('/')}/{name}"


def located(output_uri: str, name: str) -> str | None:
    """Where a part lies now: its place, or the staging folder until it is moved; None if neither.

    The place is asked a second time, since a part may move between the two looks.
    """
    place, waiting = final(output_uri, name), staged(output_uri, name)
    return next((uri for uri in (place, waiting, place) if storage.exists(uri)), None)


def passed_fields(spec: JobSpec, inputs: pa.Schema) -> list[pa.Field]:
    """The id and pass-through columns, as the input has them."""
    return [inputs.field(name) for name in spec.passed_columns]


def output_schema(spec: JobSpec, inputs: pa.Schema) -> pa.Schema | None:
    """The schema of every part of a job; None where the first answers decide."""
    match spec.task:
        case GenerateTask() as task:
            return _around(
                spec,
                inputs,
                [
                    pa.field("output", pa.string()),
                    *_parsed_field(task),
                    pa.field("finish_reason", pa.string()),
                    *TOKENS,
                ],
            )
        case ScoreTask():
            return _around(spec, inputs, [pa.field("score", pa.float32()), PROMPT_TOKENS])
        case RequestsTask():
            return _around(
                spec,
                inputs,
                [
                    pa.field("status_code", pa.int32()),
                    pa.field("request_id", pa.string()),
                    pa.field("response", pa.string()),
                    *TOKENS,
                ],
            )
    declared = spec.output.output_schema
    if declared is None:
        return None
    return _around(
        spec, inputs, [pa.field(name, arrow_type(alias)) for name, alias in declared.items()]
    )


SCALAR_TYPES: dict[Scalar, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def _parsed_field(task: GenerateTask) -> list[pa.Field]:
    scalars = task.parsed
    if scalars is None:
        return []
    fields = [pa.field(name, SCALAR_TYPES[kind]) for name, kind in scalars.items()]
    return [pa.field(PARSED, pa.struct(fields))]


def inferred_schema(
    spec: JobSpec, inputs: pa.Schema, answers: Iterable[Mapping[str, Any]]
) -> pa.Schema | None:
    """What the first answers say about the columns; None when there are no answers.

    The first vector says how many numbers all have, the first classification names the labels. Of a
    function, a column's type is that of its first values that agree; one that is null so far is a
    string.
    """
    match spec.task:
        case EmbedTask() | ClassifyTask():
            first = next(iter(answers), None)
            own = None if first is None else _pooled_fields(spec.task, first)
            return None if own is None else _around(spec, inputs, [*own, PROMPT_TOKENS])
    values: dict[str, list[Any]] = {}
    for answer in answers:
        for name, value in answer.items():
            if arrow_value(name) == name:
                values.setdefault(name, []).append(value)
    if not values:
        return None
    taken = {*RESERVED_ANSWERS, *spec.passed_columns}
    return _around(
        spec,
        inputs,
        [pa.field(name, _type_of(column)) for name, column in values.items() if name not in taken],
    )


def _pooled_fields(task: EmbedTask | ClassifyTask, answer: Mapping[str, Any]) -> list[pa.Field]:
    """The columns of a model that pools, as one answer shows them."""
    if isinstance(task, EmbedTask):
        number = pa.float16() if task.dtype == "float16" else pa.float32()
        return [pa.field("embedding", pa.list_(number, len(answer["embedding"])))]
    labels = [pa.field(name, pa.float32()) for name in answer["probabilities"]]
    return [
        pa.field("label", pa.string()),
        pa.field("probability", pa.float32()),
        pa.field("probabilities", pa.struct(labels)),
    ]


def bare_schema(spec: JobSpec, inputs: pa.Schema) -> pa.Schema:
    """The columns that stand in every part, whatever the task answers."""
    return _around(spec, inputs, [])


def is_bare(name: str) -> bool:
    """Whether a part of this name was written before the columns of its function were known."""
    return BARE in name


def stored_schema(name: str, spec: JobSpec, inputs: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """The columns in the file of a part, where the job has `schema` by now."""
    return bare_schema(spec, inputs) if is_bare(name) else schema


def widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows under the job's schema; columns that came after them are null."""
    columns = [
        table.column(field.name)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def column_sum(table: pa.Table, column: str) -> int:
    """The sum of a column of tokens; 0 where the task has none."""
    if column not in table.column_names:
        return 0
    return int(pc.sum(table.column(column)).as_py() or 0)


def serialize(schema: pa.Schema) -> bytes:
    """For the ledger."""
    return bytes(schema.serialize().to_pybytes())


def deserialize(schema: bytes) -> pa.Schema:
    """From the ledger."""
    return pa.ipc.read_schema(pa.py_buffer(schema))


def error_column(failures: Sequence[Failure | None]) -> pa.Array:
    """The column `error`: null where the row has an answer."""
    return pa.array(
        [
            None if failure is None else {"kind": str(failure.kind), "message": failure.message}
            for failure in failures
        ],
        ERROR_TYPE,
    )


def row_errors(table: pa.Table, id_column: str | None) -> list[RowError]:
    """The ledger's row errors of a part, from its own column `error`: the two cannot differ."""
    failed = table.filter(table.column("error").is_valid())
    indices = failed.column("row_index").to_pylist()
    ids = to_list(failed.column(id_column)) if id_column else [None] * len(indices)
    return [
        RowError(
            index,
            None if row_id is None else kept_message(str(row_id)),
            RowErrorKind(error["kind"]),
            error["message"],
        )
        for index, row_id, error in zip(
            indices, ids, failed.column("error").to_pylist(), strict=True
        )
    ]


def failures_table(
    schema: pa.Schema, row_index: Sequence[int], passed: pa.Table | None, failure: Failure
) -> pa.Table:
    """Rows that all carry the same error: what stands in for a batch that never got an answer.

    `passed` holds the id and pass-through columns where the source could be read, row by row.
    """
    columns = []
    for field in schema:
        if field.name == "row_index":
            columns.append(pa.array(row_index, pa.int64()))
        elif field.name == "error":
            columns.append(error_column([failure] * len(row_index)))
        elif passed is not None and field.name in passed.column_names:
            columns.append(passed.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(len(row_index), field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _around(spec: JobSpec, inputs: pa.Schema, columns: list[pa.Field]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("row_index", pa.int64()),
            *passed_fields(spec, inputs),
            *columns,
            pa.field("error", ERROR_TYPE),
        ]
    )


def _type_of(values: list[Any]) -> pa.DataType:
    for sample in (values, [next((value for value in values if value is not None), None)]):
        try:
            found = pa.array(arrow_value(sample)).type
        except (pa.ArrowException, OverflowError, TypeError, ValueError, RecursionError):
            continue
        return _writable(found)
    return pa.string()


def _writable(kind: pa.DataType) -> pa.DataType:
    """Without types that say nothing (only nulls, no keys), which Parquet cannot hold."""
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _writable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_writable(kind.value_type))
    return kind
