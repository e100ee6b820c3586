"""CSV planned: a file is read once from its front, and its Parquet copy is cut into batches."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common.formats import reading, streams
from nightshift.common.formats.csv import records, types
from nightshift.common.formats.parquet.write import regrouped
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo


def copy(info: FileInfo, spec_input: InputSpec, limit: int | None, sink: BinaryIO) -> None:
    """Writes a CSV file, or its first rows, as Parquet with its texts, see `csv/types.py`.

    Raises BadInput and Arrow's errors for what is no CSV, StorageUnavailable.
    """
    delimiter = records.delimiter_of(info.uri, spec_input.delimiter)
    columns = records.ColumnTypes(_header(info.uri, delimiter))
    with pq.ParquetWriter(sink, columns.schema, compression="zstd") as writer:
        rows = _limited(_records(info.uri, columns, delimiter), limit)
        for table in regrouped(rows, columns.schema):
            writer.write_table(table)
        writer.add_key_value_metadata(types.encoded_types(columns.types))


def _header(uri: str, delimiter: str) -> list[str]:
    """The column names; none where the file holds nothing."""
    with streams.open_stream(uri) as stream:
        head = bytes(stream.read(streams.CHUNK_BYTES))
    return records.header(uri, head, delimiter) if head.strip(b"\xef\xbb\xbf\r\n") else []


def _records(uri: str, columns: records.ColumnTypes, delimiter: str) -> Iterator[pa.RecordBatch]:
    if not columns.names:
        return
    with streams.open_stream(uri, counted=True) as stream:
        rows, bounds = 0, reading.current()
        for batch in records.batches(uri, stream, columns.names, delimiter):
            columns.narrow(batch)
            rows += batch.num_rows
            bounds.check_rows(rows)
            yield batch


def _limited(rows: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from rows
        return
    left = limit
    for batch in rows:
        yield batch.slice(0, left)
        # The last record of a file is known to be whole only once the end of the file was read.
        if left < batch.num_rows:
            return
        left -= batch.num_rows
