"""Tables staged for workers: a stream of Arrow becomes one Parquet file, in bounded memory."""

import secrets
from collections.abc import Iterator

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.known import FORMATS
from nightshift.inputs import opened

SUFFIX = ".parquet"

SLICE_ROWS = 8192

SLICE_BYTES = 4 * 2**20
"""A batch of the stream is cut into slices of SLICE_ROWS rows or about SLICE_BYTES bytes, of which row
groups are made: a stream may give all of its rows in one batch."""


def stage(data: object, folder: str) -> str:
    """Writes the rows of a table into `folder`, and returns the address of the file.

    The name is a hash of what the file holds: the same rows give the same file, which is not written
    again. Memory holds one row group (64 MiB) beside what the stream itself holds. Raises BadInput for
    what is no table, StorageUnavailable.
    """
    folder = storage.resolve(folder).rstrip("/")
    aside = f"{folder}/{secrets.token_hex(8)}.new"
    with opened(data) as reader:
        _refuse_names(reader.schema)
        bare = pa.schema([pa.field(each.name, each.type) for each in reader.schema])
        written = storage.write_whole(
            aside, lambda sink: FORMATS["parquet"].write(_slices(reader, bare), bare, sink, {})
        )
    uri = f"{folder}/{written.checksum[:24]}{SUFFIX}"
    storage.move(aside, uri, written.bytes)
    return uri


def content_hash(uri: str) -> str:
    """The hash in the name of a staged file."""
    return uri.rpartition("/")[2].removesuffix(SUFFIX)


def _slices(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        row_bytes = batch.nbytes / max(1, batch.num_rows)
        step = max(1, min(SLICE_ROWS, int(SLICE_BYTES / max(1.0, row_bytes))))
        for first in range(0, batch.num_rows, step):
            piece = batch.slice(first, step)
            yield pa.RecordBatch.from_arrays(piece.columns, schema=schema)


def _refuse_names(schema: pa.Schema) -> None:
    if not schema.names:
        raise BadInput("the table has no columns")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise BadInput(f"the table has two columns called {name!r}: rename one")
