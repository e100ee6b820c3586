"""The columns of the parts of a job: by its task, by its spec, or by the first answers.

Where the parts become part of a table, the columns are written in its types; in memory they keep their own.
NoTableType names a column for which the table has no type.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from nightshift.common.formats.arrow_types import arrow_type, storable_type
from nightshift.common.formats.table_types import for_table
from nightshift.common.formats.values import CAST_ERRORS, arrow_value, whole_array
from nightshift.common.spec import (
    ANSWERED_BY,
    OUTPUTS,
    PARSED,
    RESERVED_ANSWERS,
    VOTE_SHARE,
    ClassifyTask,
    EmbedTask,
    GenerateTask,
    JobSpec,
    RequestsTask,
    ScoreTask,
)
from nightshift.common.spec.json_schema import Scalar

PROMPT_TOKENS = pa.field("prompt_tokens", pa.int32())

TOKENS = (PROMPT_TOKENS, pa.field("output_tokens", pa.int32()))

ERROR_TYPE = pa.struct([pa.field("kind", pa.string()), pa.field("message", pa.string())])

TOKEN = [
    pa.field("token", pa.string()),
    pa.field("token_id", pa.int32()),
    pa.field("logprob", pa.float64()),
]
"""One token with its log probability; a remote server names no id."""

LOGPROBS = pa.list_(pa.struct([*TOKEN, pa.field("top", pa.list_(pa.struct(TOKEN)))]))
"""The tokens of an answer or a prompt in order, each with the likeliest at its place."""

SCALAR_TYPES: dict[Scalar, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def output_schema(spec: JobSpec, inputs: pa.Schema) -> pa.Schema | None:
    """The schema of every part of a job; None where the first answers decide."""
    declared = spec.output.output_schema
    match spec.task:
        case GenerateTask() as task:
            columns = _generated(task)
        case ScoreTask():
            columns = [pa.field("score", pa.float32()), PROMPT_TOKENS]
        case RequestsTask():
            columns = [
                pa.field("status_code", pa.int32()),
                pa.field("request_id", pa.string()),
                pa.field("response", pa.string()),
                *TOKENS,
            ]
        case _ if declared is None:
            return None
        case _:
            columns = [pa.field(name, arrow_type(alias)) for name, alias in declared.items()]
    return _around(spec, inputs, columns)


def _generated(task: GenerateTask) -> list[pa.Field]:
    """The columns of generated text: the answer, what the spec asks for beside it, and the tokens."""
    known = {
        OUTPUTS: pa.list_(pa.struct(_sample(task))),
        **{each.name: each.type for each in _sample(task)},
        VOTE_SHARE: pa.float64(),
        "reasoning_tokens": pa.int32(),
        "prompt_logprobs": LOGPROBS,
    }
    columns = [pa.field(name, known[name]) for name in task.answers]
    if task.sampling.n == 1:
        columns.append(pa.field("finish_reason", pa.string()))
    return [*columns, *TOKENS]


def _sample(task: GenerateTask) -> list[pa.Field]:
    """The columns of one sample, the fields of an element of `outputs`."""
    fields = [pa.field("output", pa.string())]
    if task.parsed is not None:
        scalars = [(name, SCALAR_TYPES[kind]) for name, kind in task.parsed.items()]
        fields.append(pa.field(PARSED, pa.struct(scalars)))
    if task.keep_reasoning:
        fields.append(pa.field("reasoning", pa.string()))
    if task.has_confidence:
        fields.append(pa.field("confidence", pa.float64()))
    if task.sampling.logprobs is not None:
        fields.append(pa.field("logprobs", LOGPROBS))
    if task.sampling.n > 1:
        fields += [pa.field("finish_reason", pa.string()), pa.field("output_tokens", pa.int32())]
    return fields


def inferred_schema(
    spec: JobSpec, inputs: pa.Schema, answers: Iterable[Mapping[str, Any]]
) -> pa.Schema | None:
    """What the first answers say about the columns; None when there are no answers.

    The first vector sets the length of all vectors, the first classification the labels. A column
    of a function has the type of these values, or of the first where they differ, and string where
    all are null.
    """
    if isinstance(spec.task, EmbedTask | ClassifyTask):
        first = next(iter(answers), None)
        return None if first is None else _around(spec, inputs, _pooled_fields(spec.task, first))
    values: dict[str, list[Any]] = {}
    for answer in answers:
        for name, value in answer.items():
            if arrow_value(name) == name:
                values.setdefault(name, []).append(value)
    if not values:
        return None
    taken = {*RESERVED_ANSWERS, ANSWERED_BY, *spec.passed_columns}
    if not spec.task.shares:
        taken.remove(ANSWERED_BY)
    return _around(
        spec,
        inputs,
        [pa.field(name, _type_of(column)) for name, column in values.items() if name not in taken],
    )


def _pooled_fields(task: EmbedTask | ClassifyTask, answer: Mapping[str, Any]) -> list[pa.Field]:
    """The columns of a model that pools, as one answer shows them."""
    if isinstance(task, EmbedTask):
        number = pa.float16() if task.dtype == "float16" else pa.float32()
        return [pa.field("embedding", pa.list_(number, len(answer["embedding"]))), PROMPT_TOKENS]
    labels = [pa.field(name, pa.float32()) for name in answer["probabilities"]]
    return [
        pa.field("label", pa.string()),
        pa.field("probability", pa.float32()),
        pa.field("probabilities", pa.struct(labels)),
        PROMPT_TOKENS,
    ]


def bare_schema(spec: JobSpec, inputs: pa.Schema) -> pa.Schema:
    """The columns that stand in every part, whatever the task answers."""
    return _around(spec, inputs, [])


def _around(spec: JobSpec, inputs: pa.Schema, columns: list[pa.Field]) -> pa.Schema:
    """These columns between those of every part; id and pass-through columns are as in the input."""
    if spec.task.shares:
        columns = [*columns, pa.field(ANSWERED_BY, pa.int64())]
    schema = pa.schema(
        [
            pa.field("row_index", pa.int64()),
            *(inputs.field(name) for name in spec.passed_columns),
            *columns,
            pa.field("error", ERROR_TYPE),
        ]
    )
    table = spec.output.table
    return schema if table is None else for_table(schema, table.format)


def serialize(schema: pa.Schema) -> bytes:
    """For the ledger."""
    return bytes(schema.serialize().to_pybytes())


def deserialize(schema: bytes) -> pa.Schema:
    """From the ledger."""
    return pa.ipc.read_schema(pa.py_buffer(schema))


def _type_of(values: list[Any]) -> pa.DataType:
    # The first that Arrow holds: a whole number beyond 64 bits says nothing of the others.
    for sample in (values, *([value] for value in values if value is not None), [None]):
        with suppress(*CAST_ERRORS):
            return storable_type(whole_array(sample).type)
    return pa.string()
