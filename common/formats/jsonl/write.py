"""JSONL written: one object a line, in UTF-8."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common.formats.values import to_list
from nightshift.common.text import json_line, map_leaves


def written(
    batches: Iterable[pa.RecordBatch],
    _schema: pa.Schema,
    sink: BinaryIO,
    _metadata: Mapping[str, str],
    changes: Mapping[str, Callable[[str], str]] | None = None,
) -> Iterator[int]:
    """Writes one object a line in UTF-8, see `format.Written`. `changes` give the text that stands for one of
    a column.

    Timestamps are written in ISO 8601, bytes in base64, NaN as null.
    """
    for batch in batches:
        columns = [_python_values(column) for column in batch.columns]
        names = batch.schema.names
        for name, change in (changes or {}).items():
            at = names.index(name)
            columns[at] = [None if each is None else change(each) for each in columns[at]]
        for values in zip(*columns, strict=True):
            sink.write(encode_row(dict(zip(names, values, strict=True))) + b"\n")
        yield batch.num_rows


def _python_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's datetime has no nanoseconds; Arrow's text has.
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T", 1) for text in texts]
    return to_list(column)


def column_texts(column: pa.Array) -> list[str | None]:
    """The values of a column as they stand in a line: objects and lists as JSON, others as the text
    alone.
    """
    values = _python_values(column)
    if pa.types.is_nested(column.type):
        return [None if value is None else _json_text(value) for value in values]
    return [
        value if value is None or isinstance(value, str) else _json_value(value) for value in values
    ]


def encode_row(row: dict[str, Any]) -> bytes:
    """One row as one line of JSON, without a newline; half of a character is its escape."""
    return json_line(_json_text(row)).encode("utf-8", "backslashreplace")


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_json_value)
    except ValueError:
        return json.dumps(map_leaves(value, _finite), ensure_ascii=False, default=_json_value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_value(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
