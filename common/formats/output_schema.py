"""The columns of the parts of a job: by its task, by its spec, or by the first answers."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from nightshift.common.formats.arrow_types import arrow_type, storable_type
from nightshift.common.formats.values import CAST_ERRORS, arrow_value, whole_array
from nightshift.common.spec import (
    ANSWERED_BY,
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

PROMPT_TOKENS = pa.field("prompt_tokens", pa.int32())

TOKENS = (PROMPT_TOKENS, pa.field("output_tokens", pa.int32()))

ERROR_TYPE = pa.struct([pa.field("kind", pa.string()), pa.field("message", pa.string())])

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
        case GenerateTask(parsed=parsed):
            columns = [pa.field("output", pa.string())]
            if parsed is not None:
                scalars = [(name, SCALAR_TYPES[kind]) for name, kind in parsed.items()]
                columns.append(pa.field(PARSED, pa.struct(scalars)))
            columns += [pa.field("finish_reason", pa.string()), *TOKENS]
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
    return pa.schema(
        [
            pa.field("row_index", pa.int64()),
            *(inputs.field(name) for name in spec.passed_columns),
            *columns,
            pa.field("error", ERROR_TYPE),
        ]
    )


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
