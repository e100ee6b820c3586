"""JSONL examined: the columns by the first rows of a file, and where its batches end."""

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import reading, source_files
from nightshift.common.formats.format import Examined, Wanted
from nightshift.common.formats.jsonl import openai_batch, plan
from nightshift.common.formats.jsonl.columns import json_type, merged_type
from nightshift.common.formats.jsonl.lines import content_start, is_blank, parse_row
from nightshift.common.storage import FileInfo
from nightshift.common.text import counted

HEAD_ROWS = 1000
"""Rows of each file that are parsed at submit."""

HEAD_LINE_BYTES = 256 * 2**20
"""A file with a longer line among those rows is refused: it is probably no JSONL."""


def examine(info: FileInfo, read: FileInfo, wanted: Wanted, limit: int | None) -> Examined:
    """What a plan knows of a JSONL file, see `format.Examine`."""
    head = HEAD_ROWS if limit is None else min(limit, HEAD_ROWS)
    schema = head_schema(read.uri, head, info.uri, reading.current().most_line_bytes)
    return _examined(info, read, wanted, limit, schema)


def examine_requests(info: FileInfo, read: FileInfo, wanted: Wanted, limit: int | None) -> Examined:
    """The same of an OpenAI batch file, whose columns are fixed and whose bodies stay the texts they were."""
    return _examined(info, read, wanted, limit, openai_batch.SCHEMA)


def _examined(
    info: FileInfo, read: FileInfo, wanted: Wanted, limit: int | None, schema: pa.Schema
) -> Examined:
    bounds = reading.current()
    scan = plan.scan_lines(read.uri, wanted.batch_rows, bounds.within(limit), info.uri)
    bounds.check_rows(scan.rows)
    scan, cuts = plan.cut_lines(read.uri, scan, wanted.batch_rows, wanted.batch_bytes)
    return Examined(scan.rows, schema, scan, cuts)


def head_schema(
    uri: str,
    rows: int = HEAD_ROWS,
    origin: str | None = None,
    most_line_bytes: int | None = None,
) -> pa.Schema:
    """Column types from the first rows of a file; BadInput names the file and line of a broken row.

    `origin` is the file of which this one is a copy; messages name it. Longer lines than `most_line_bytes` are
    refused; without it than HEAD_LINE_BYTES.
    """
    types: dict[str, pa.DataType] = {}
    for parsed in _head(uri, rows, origin or uri, most_line_bytes or HEAD_LINE_BYTES):
        for name in dict.fromkeys(chain.from_iterable(parsed)):
            found = json_type([row.get(name) for row in parsed])
            types[name] = merged_type(types.get(name, pa.null()), found)
    return pa.schema(list(types.items()))


def _head(uri: str, rows: int, name: str, most_line_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """The first rows, in lists of a few megabytes; a list with one large row may be larger."""
    parsed: list[dict[str, Any]] = []
    taken = held_bytes = 0
    with storage.open_input(uri, sequential=True) as handle:
        content_start(handle)
        for number in count(1):
            line = handle.readline(most_line_bytes + 1)
            if not line or taken == rows:
                break
            if len(line) > most_line_bytes:
                raise BadInput(
                    f"{name} line {number}: longer than {counted(most_line_bytes, 'byte')}"
                )
            if is_blank(line):
                continue
            try:
                parsed.append(parse_row(line))
            except ValueError as error:
                why = str(error) if taken else _whole_file(name, line) or str(error)
                raise BadInput(f"{name} line {number}: {why}") from error
            taken, held_bytes = taken + 1, held_bytes + len(line)
            if held_bytes > 4 * 2**20:
                yield parsed
                parsed, held_bytes = [], 0
    yield parsed


def _whole_file(name: str, line: bytes) -> str:
    """Return the message for a first line that is invalid because the file is not in UTF-8 or is one JSON value;
    empty for any other line.
    """
    if (encoding := source_files.wide_encoding(line)) is not None:
        command = source_files.in_utf_8(name, encoding)
        return f"the file is in {encoding}, not in UTF-8: convert it with `{command}`"
    start = line.lstrip()
    if start.startswith(b"["):
        return f"a JSON array begins, and not a row a line: `{source_files.lines_of(name)}` writes them"
    if start.rstrip() == b"{":
        return (
            "an object begins that goes over several lines, and not a row a line: "
            f"`{source_files.lines_of(name, '.')}` writes them"
        )
    return ""
