"""JSONL read: the types of its columns, the rows of a batch, and whole parts."""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.jsonl.columns import json_type, merged_type, to_table
from nightshift.common.formats.jsonl.lines import BadLine, content_start, is_blank, parse_line
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

HEAD_ROWS = 1000
"""Rows of each file that are parsed at submit."""

HEAD_LINE_BYTES = 256 * 2**20
"""A file with a longer line among those rows is refused: it is probably no JSONL."""

COUNTED_BYTES = 64 * 2**20
"""A message names the line of a row up to here in a file; counting further lines costs too much."""


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
                raise BadInput(f"{name} line {number}: longer than {most_line_bytes:,} bytes")
            if is_blank(line):
                continue
            try:
                parsed.append(parse_line(line))
            except ValueError as error:
                raise BadInput(f"{name} line {number}: {error}") from error
            taken, held_bytes = taken + 1, held_bytes + len(line)
            if held_bytes > 4 * 2**20:
                yield parsed
                parsed, held_bytes = [], 0
    yield parsed


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    schema: pa.Schema,
    parse: Callable[[bytes], dict[str, Any]] = parse_line,
    fixed: Collection[str] = (),
) -> tuple[pa.Table, dict[int, Failure], Callable[[int], str]]:
    """The rows of a batch; see `input_rows.Found`.

    `parse` makes a row of a line, and raises ValueError (or BadLine) for one that is none. The columns
    `fixed` come in the types of the schema, others maybe wider.
    Raises SourceChanged when the file holds fewer lines than it did, FileNotFoundError and
    StorageUnavailable as they come from storage.
    """
    source, locator = descriptor.source, descriptor.locator
    if locator is None:
        raise ValueError("a JSONL batch needs the place of its lines")
    block = storage.read_range(source.uri, locator.byte_offset, locator.byte_length)
    lines = io.BytesIO(block).readlines()
    positions = [at for at, line in enumerate(lines) if not is_blank(line)]
    wanted = list(descriptor.rows)
    if len(block) < locator.byte_length or wanted[-1] - locator.first_row >= len(positions):
        raise SourceChanged(f"{source.uri} holds fewer lines than when the job was submitted")

    lines_before: list[int] = []

    def place(index: int) -> str:
        if locator.byte_offset > COUNTED_BYTES:
            row = index - source.first_row + 1
            return f"{source.given_uri} row {row}, after byte {locator.byte_offset}"
        if not lines_before:
            before = storage.read_range(source.uri, 0, locator.byte_offset)
            lines_before.append(before.count(b"\n"))
        return (
            f"{source.given_uri} line {lines_before[0] + positions[index - locator.first_row] + 1}"
        )

    rows: list[dict[str, Any]] = []
    bad: dict[int, Failure] = {}
    for index in wanted:
        try:
            rows.append(parse(lines[positions[index - locator.first_row]]))
        except ValueError as error:
            rows.append(error.row if isinstance(error, BadLine) else {})
            bad[index] = Failure(RowErrorKind.BAD_RECORD, str(error))
    table, strange = to_table(rows, columns, schema, fixed)
    for at, why in strange.items():
        bad[wanted[at]] = Failure(RowErrorKind.BAD_TYPE, why)
    return table, bad, place


def parsed(descriptor: Descriptor) -> list[dict[str, Any]]:
    """The rows of a batch as their lines have them, whatever the types of the columns; nothing for a
    line that is no row. Raises what `read` raises.
    """
    rows: list[dict[str, Any]] = []

    def keep(line: bytes) -> dict[str, Any]:
        rows.append({})
        rows[-1] = parse_line(line)
        return {}

    read(descriptor, (), pa.schema([]), keep)
    return rows


def iter_batches(uri: str, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """A whole part as record batches of one schema; BadInput for a line that does not fit it. No
    link is followed.
    """
    number = 0
    with storage.open_input(uri, sequential=True, links=False) as handle:
        content_start(handle)
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(handle, 1):
            if not is_blank(line):
                try:
                    rows.append(parse_line(line))
                except ValueError as error:
                    raise BadInput(f"{uri} line {number}: {error}") from error
            if len(rows) == batch_rows:
                yield from _batch(uri, rows, schema, number)
                rows = []
    if rows:
        yield from _batch(uri, rows, schema, number)


def _batch(
    uri: str, rows: list[dict[str, Any]], schema: pa.Schema, number: int
) -> Iterable[pa.RecordBatch]:
    table, bad = to_table(rows, schema.names, schema, schema.names)
    if bad:
        raise BadInput(f"{uri} in the {len(rows)} rows up to line {number}: {min(bad.items())[1]}")
    batches: list[pa.RecordBatch] = table.cast(schema).to_batches()
    return batches
