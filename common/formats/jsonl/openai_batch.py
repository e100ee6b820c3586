"""Lines of an OpenAI batch file as rows: the columns are fixed, and a body stays the text it was.

Bodies differ from line to line, so they do not become Arrow structs, and their numbers stay as they were
written. A line in which an object repeats a key is not a request. A `custom_id` comes
back as it was, half characters included: a client joins by it.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common.descriptor import Descriptor
from nightshift.common.formats.format import Found
from nightshift.common.formats.jsonl import read as lines
from nightshift.common.formats.jsonl import write as encoded
from nightshift.common.formats.jsonl.lines import BadLine, parse_line
from nightshift.common.formats.jsonl.members import member
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import REQUEST_COLUMNS, REQUEST_ID
from nightshift.common.text import MARK, has_half_characters

SCHEMA = pa.schema([(name, pa.string()) for name in REQUEST_COLUMNS])

METHOD = "POST"
"""The only method of the format."""


def stored_id(custom_id: str) -> str:
    """The text that stands for a `custom_id` in every column. It is the id itself, except for an id with half of a
    character, which no column can hold. That half is written as its JSON escape. Different ids have different
    texts: a backslash is doubled in such texts, and in ids that look like one.
    """
    if not has_half_characters(custom_id) and not _ESCAPED_HALF.search(custom_id):
        return custom_id
    return custom_id.replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode("utf-8")


def given_id(stored: str) -> str:
    """The `custom_id` that such a text stands for, with half characters."""
    if not _ESCAPED_HALF.search(stored):
        return stored
    return _ESCAPE.sub(lambda found: "\\" if found[1] is None else chr(int(found[1], 16)), stored)


_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-f]{4}))")


def id_of(line: bytes, row: Mapping[str, Any]) -> str | None:
    """The text of a line's `custom_id`, see `stored_id`; None where the line has none. `row` is what
    `parse_line` made of the line.
    """
    found = row.get("custom_id")
    if not isinstance(found, str):
        return None
    if MARK in found and (text := member(line.decode("utf-8"), "custom_id")) is not None:
        found = json.loads(text)
    return stored_id(found)


def parse_request(line: bytes) -> dict[str, Any]:
    """One request, every column a string; other members of the line are ignored.

    ValueError says in a phrase why the line is no request; a BadLine also has the
    columns that could be read, so that the `custom_id` is not lost.
    """
    row = parse_line(line)
    request = {name: row[name] for name in REQUEST_COLUMNS[:-1] if isinstance(row.get(name), str)}
    request.pop("custom_id", None)
    if custom_id := id_of(line, row):
        request["custom_id"] = custom_id
    wrong = _wrong(row)
    if wrong is not None:
        raise BadLine(wrong, request)
    return {**request, "body": member(line.decode("utf-8"), "body")}


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
    fixed: Collection[str] = (),
) -> Found:
    """The requests of a batch, see `format.Read`."""
    return lines.read(descriptor, columns, cache, schema, fixed, parse_request)


def written(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    sink: BinaryIO,
    metadata: Mapping[str, str],
) -> Iterator[int]:
    """Writes lines whose ids are those of the requests, which a column need not hold as they were."""
    return encoded.written(batches, schema, sink, metadata, {REQUEST_ID: given_id})


def _wrong(row: dict[str, Any]) -> str | None:
    """Why a JSON object is no request; None where it is one."""
    for name in REQUEST_COLUMNS:
        if name not in row:
            return f"{name} is missing"
    for name in REQUEST_COLUMNS[:-1]:
        if not isinstance(row[name], str):
            return f"{name} is no string"
    if not row["custom_id"]:
        return "custom_id is empty"
    if row["method"] != METHOD:
        return f"method is {row['method'][:20]!r}, not {METHOD}"
    return None if isinstance(row["body"], dict) else "body is no JSON object"
