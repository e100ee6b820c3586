"""Parts as files, in Parquet or JSONL: written whole or as a stream, and read again."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.formats.jsonl import reader as jsonl_reader
from nightshift.common.formats.jsonl import writer as jsonl_writer
from nightshift.common.formats.jsonl.json_types import storable_type
from nightshift.common.formats.parquet import reader as parquet_reader
from nightshift.common.formats.parquet import writer as parquet_writer
from nightshift.common.formats.parquet.footer import METADATA_PREFIX, read_footer
from nightshift.common.storage import Written

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
    _encode(sink, table.to_batches(), table.schema, kind, metadata)
    return sink.getvalue()


def write_encoded(uri: str, data: pa.Buffer) -> Written:
    """Writes what `encode_part` made. Raises StorageUnavailable."""
    return storage.write_bytes(uri, memoryview(data), replace=False)


def write_batches(
    uri: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    kind: OutputFormat,
    metadata: dict[str, str],
    *,
    replace: bool = False,
) -> int:
    """Like `write_part` for a stream of batches of one schema, in bounded memory; returns the rows.

    `replace` is storage.write_whole's.
    """
    rows = 0

    def write(sink: BinaryIO) -> None:
        nonlocal rows
        rows = _encode(sink, batches, schema, kind, metadata)

    storage.write_whole(uri, write, replace=replace)
    return rows


def _encode(
    sink: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    kind: OutputFormat,
    metadata: dict[str, str],
) -> int:
    if kind == "parquet":
        return parquet_writer.write(batches, schema, sink, metadata)
    return jsonl_writer.write(batches, sink)


def read_part(uri: str, kind: OutputFormat, schema: pa.Schema | None = None) -> pa.Table:
    """A whole part; JSONL needs the `schema` to bring back types that JSON does not have.

    Raises FileNotFoundError, BadInput when the part is damaged, StorageUnavailable.
    """
    known = schema or part_schema(uri, kind)
    return pa.Table.from_batches(iter_part_batches(uri, kind, known), known)


def iter_part_batches(
    uri: str,
    kind: OutputFormat,
    schema: pa.Schema | None = None,
    batch_rows: int = PART_BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in order, `batch_rows` at a time, cast to `schema` where it is given."""
    if kind == "jsonl":
        yield from jsonl_reader.iter_batches(uri, schema or part_schema(uri, kind), batch_rows)
        return
    for batch in parquet_reader.iter_batches(uri, batch_rows):
        bare = batch.replace_schema_metadata(None)
        if schema is not None and not bare.schema.equals(schema):
            bare = bare.select(schema.names).cast(schema)
        yield bare


def part_schema(uri: str, kind: OutputFormat) -> pa.Schema:
    """The columns of a part as its file tells them, without metadata."""
    if kind == "parquet":
        return read_footer(uri).schema.remove_metadata()
    found = jsonl_reader.head_schema(uri)
    return pa.schema([(column.name, storable_type(column.type)) for column in found])


def part_metadata(uri: str) -> dict[str, str]:
    """The provenance in a Parquet part, without the prefix of its keys."""
    prefix = METADATA_PREFIX.encode()
    known: dict[bytes, bytes] = read_footer(uri).metadata.metadata or {}
    return {
        key.removeprefix(prefix).decode(): value.decode()
        for key, value in known.items()
        if key.startswith(prefix)
    }
