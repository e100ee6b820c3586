"""CSV of any rows: nested values, bytes and what else CSV has no text for as JSON text."""

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv

from nightshift.common.formats.jsonl import write as jsonl

PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_null,
)
"""Types that pyarrow writes as CSV."""


def written(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    sink: BinaryIO,
    _metadata: Mapping[str, str],
) -> Iterator[int]:
    """Writes the rows with a header, see `format.Written`.

    Null is an empty field, the empty text is `""`. Lists, objects and bytes are what they are in JSON
    lines: `[0.5, 1.0]`, `{"kind": "truncated", …}`, base64.
    """
    columns = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
    with csv.CSVWriter(sink, columns) as writer:
        for batch in batches:
            arrays = map(_texts, batch.columns, columns.types)
            writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=columns))
            yield batch.num_rows


def _csv_type(kind: pa.DataType) -> pa.DataType:
    return kind if any(is_plain(kind) for is_plain in PLAIN) else pa.string()


def _texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    return pa.array(jsonl.column_texts(column), kind)
