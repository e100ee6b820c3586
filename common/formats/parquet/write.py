"""Parquet written: parts in row groups of a bounded size, with provenance in their metadata."""

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common.formats.parquet.column_types import as_written, written_schema
from nightshift.common.formats.parquet.footer import METADATA_PREFIX

GROUP_ROWS = 64 * 1024

GROUP_BYTES = 64 * 2**20
"""A row group ends when it has GROUP_ROWS rows or GROUP_BYTES bytes."""

COMPRESSED_BYTES = 16 * 1024
"""A smaller part (decoded) is not compressed: the setup of Zstandard for each column would cost more
than compression saves."""


def written(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    sink: BinaryIO,
    metadata: Mapping[str, str],
) -> Iterator[int]:
    """Writes a part with `metadata` beside the file's own, see `format.Written`: a row group at a time.

    Parts are compressed with Zstandard, except small ones (COMPRESSED_BYTES). Columns of the input
    get the types that they have in the input's files.
    """
    target = written_schema(schema).with_metadata(
        {f"{METADATA_PREFIX}{key}": value for key, value in metadata.items()}
    )
    groups = regrouped(batches, schema)
    table = next(groups, None)
    small = table is None or table.nbytes < COMPRESSED_BYTES
    compression = "none" if small else "zstd"
    with pq.ParquetWriter(sink, target, compression=compression) as writer:
        while table is not None:
            writer.write_table(as_written(table, target), row_group_size=GROUP_ROWS * 4)
            # One group is in memory at a time, and none while the caller has its turn.
            rows, table = table.num_rows, None
            yield rows
            table = next(groups, None)


def regrouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables, one for each row group."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield _emptied(held, schema)
            rows = size_bytes = 0
    if held:
        yield _emptied(held, schema)


def _emptied(held: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches of a list as a table, which alone holds them from now on."""
    table = pa.Table.from_batches(held, schema)
    held.clear()
    return table
