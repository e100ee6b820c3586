"""JSONL read: the rows of a batch, and whole parts."""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.format import Found
from nightshift.common.formats.jsonl.columns import to_table
from nightshift.common.formats.jsonl.lines import BadLine, content_start, is_blank, parse_row
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.source_files import check_unchanged
from nightshift.common.public_text import marked, private
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted

COUNTED_BYTES = 64 * 2**20
"""A message names the line of a row up to here in a file; counting further lines costs too much."""


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    _cache: ReadCache,
    schema: pa.Schema,
    fixed: Collection[str] = (),
    parse: Callable[[bytes], dict[str, Any]] = parse_row,
) -> Found:
    """The rows of a batch, see `format.Read`.

    JSONL values are brought to the types of the schema. A nested column may come wider, with keys that the
    first rows of the file lacked, unless it is `fixed`. SourceChanged where the file is not the planned one.
    """
    try:
        return rows_of(descriptor, columns, schema, fixed, parse)
    finally:
        # After the read, and whatever became of it: another file has other lines there.
        check_unchanged(descriptor.source)


def rows_of(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    schema: pa.Schema,
    fixed: Collection[str] = (),
    parse: Callable[[bytes], dict[str, Any]] = parse_row,
) -> Found:
    """The same of a file that nobody looks at again.

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
        raise SourceChanged(
            f"{private(source.uri)} holds fewer lines than when the job was submitted"
        )

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
        rows[-1] = parse_row(line)
        return {}

    rows_of(descriptor, (), pa.schema([]), parse=keep)
    return rows


def part_batches(uri: str, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
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
                    rows.append(parse_row(line))
                except ValueError as error:
                    raise BadInput(f"{private(uri)} line {number}: {marked(error)}") from error
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
        raise BadInput(
            f"{private(uri)} in the {counted(len(rows), 'row')} up to line {number}: {min(bad.items())[1]}"
        )
    batches: list[pa.RecordBatch] = table.cast(schema).to_batches()
    return batches
