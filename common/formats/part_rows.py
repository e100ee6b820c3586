"""The rows of parts: as tables with a column of errors, as files in Parquet or JSONL, read again under
the job's schema, and merged with rows that ran again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import provenance, storage
from nightshift.common.descriptor import InputFormat, RowRanges
from nightshift.common.formats import output_schema
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.part_names import is_bare
from nightshift.common.formats.values import to_list
from nightshift.common.row_errors import Failure, RowError
from nightshift.common.spec import JobSpec
from nightshift.common.states import RowErrorKind
from nightshift.common.storage import Written
from nightshift.common.text import kept_message

OutputFormat = Literal["parquet", "jsonl"]

PART_BATCH_ROWS = 4096
"""Rows that are in memory at once while a part is streamed."""


def write_part(uri: str, table: pa.Table, kind: OutputFormat, metadata: dict[str, str]) -> Written:
    """Writes a part whole; Parquet carries `metadata` under keys that start with `nightshift.`.

    Raises StorageUnavailable.
    """
    return write_encoded(uri, encode_part(table, kind, metadata))


def encode_part(table: pa.Table, kind: OutputFormat, metadata: dict[str, str]) -> pa.Buffer:
    """The bytes of a part. In memory, since Arrow would come back to Python for every piece of it
    that goes to a file.
    """
    sink = pa.BufferOutputStream()
    FORMATS[kind].write(table.to_batches(), table.schema, sink, metadata)
    return sink.getvalue()


def write_encoded(uri: str, data: pa.Buffer, syncs: storage.Syncs | None = None) -> Written:
    """Write what `encode_part` made. With `syncs` it is durable after its `finish`. Raises StorageUnavailable."""
    return storage.write_bytes(uri, memoryview(data), replace=False, syncs=syncs)


def write_batches(
    uri: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    kind: InputFormat,
    metadata: dict[str, str],
) -> int:
    """Like `write_part` for a stream of batches of one schema, in bounded memory; returns the rows.

    An older file is replaced.
    """
    rows = 0

    def write(sink: BinaryIO) -> None:
        nonlocal rows
        rows = FORMATS[kind].write(batches, schema, sink, metadata)

    storage.write_whole(uri, write, replace=True)
    return rows


def iter_part_batches(
    uri: str, kind: OutputFormat, schema: pa.Schema, batch_rows: int = PART_BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in order, `batch_rows` at a time, with the columns and types of `schema`.

    JSONL gets back the types that JSON does not have.
    """
    return FORMATS[kind].part_batches(uri, schema, batch_rows)


@dataclass(frozen=True, slots=True)
class PartStore:
    """Reads parts of a job with these input columns and this output schema."""

    spec: JobSpec
    inputs: pa.Schema
    schema: pa.Schema

    def read(self, name: str, uri: str) -> pa.Table:
        """A whole part, which lies at `uri`, under the job's schema."""
        return pa.Table.from_batches(self.kept_rows(name, uri, None), self.schema)

    def provenance(self, uri: str) -> dict[str, str]:
        """The metadata of a part; empty where the format has no place for metadata."""
        return FORMATS[self.spec.output.format].part_metadata(uri)

    def kept_rows(self, name: str, uri: str, redone: RowRanges | None) -> Iterator[pa.RecordBatch]:
        """The rows of a part without those of `redone`, a few thousand at a time."""
        redo = None if redone is None else pa.array(list(redone), pa.int64())
        stored = self.schema
        if is_bare(name):
            stored = output_schema.bare_schema(self.spec, self.inputs)
        for batch in iter_part_batches(uri, self.spec.output.format, stored):
            table = under_schema(pa.Table.from_batches([batch]), self.schema)
            if redo is not None:
                table = table.filter(pc.invert(pc.is_in(table.column("row_index"), redo)))
            yield from table.to_batches()

    def merge(
        self, new: pa.Table, made_by: Mapping[str, str], redone: RowRanges, name: str, uri: str
    ) -> tuple[pa.Table, dict[str, str]]:
        """The new rows with the kept rows of a part, in row order, and the provenance of both.

        `redone` are the rows that `new` has.
        """
        kept = pa.Table.from_batches(self.kept_rows(name, uri, redone), self.schema)
        merged = pa.concat_tables([new, kept]).sort_by("row_index")
        return merged, provenance.with_kept(made_by, redone, self.provenance(uri))


def under_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows under the job's schema; a column that the table lacks is null."""
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


def error_column(failures: Sequence[Failure | None]) -> pa.Array:
    """The column `error`: null where the row has an answer."""
    return pa.array(
        [
            None if failure is None else {"kind": str(failure.kind), "message": failure.message}
            for failure in failures
        ],
        output_schema.ERROR_TYPE,
    )


def row_errors(table: pa.Table, id_column: str | None) -> list[RowError]:
    """The row errors of a part for the ledger, from the column `error`, so that both are the same."""
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
    """Rows that all have the same error, for a batch that never got an answer.

    `passed` has the id and pass-through columns of these rows, where the source could be read.
    """
    columns = {
        "row_index": pa.array(row_index, pa.int64()),
        "error": error_column([failure] * len(row_index)),
    }
    if passed is not None:
        for name in set(passed.column_names) & set(schema.names):
            columns[name] = passed.column(name).cast(schema.field(name).type)
    return under_schema(pa.table(columns), schema)
