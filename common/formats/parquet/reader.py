"""Parquet read: the rows of a batch out of row groups, and whole parts."""

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.parquet.column_types import plain_type
from nightshift.common.formats.parquet.footer import FAULTS, Footer, no_memory, read_footer
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.parquet.row_groups import DamagedError, RowGroup, identity
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

WHOLE_BYTES = 8 * 2**20
"""A part of at most this size is read at once before it is decoded: twice as fast (measured)."""


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    unchanged: Callable[[SourceFile], None],
) -> tuple[pa.Table, dict[int, Failure], Callable[[int], str]]:
    """The rows of a batch in order, null where they are bad; the last names the place of a row.

    `unchanged` raises SourceChanged; it is asked after each read of the file, before what was
    read is kept.
    """
    source = descriptor.source
    footer = _footer(source, cache, unchanged)
    names = _checked_names(source.uri, footer, columns)
    pieces: list[pa.Table] = []
    damaged: dict[int, str] = {}
    for start, stop in descriptor.rows.ranges:
        first, last = start - source.first_row, stop - source.first_row
        if last > footer.starts[-1]:
            raise SourceChanged(f"{source.uri} holds fewer rows than when the job was submitted")
        for group, low, high in _spans(footer, first, last) if names else ():
            try:
                wanted_group = RowGroup(source, footer, group, names, cache, unchanged)
                pieces += wanted_group.rows(low, high)
            except DamagedError as error:
                pieces.append(_nulls(footer, names, high - low))
                begin = source.first_row + footer.starts[group]
                damaged |= dict.fromkeys(range(begin + low, begin + high), str(error))

    def place(index: int) -> str:
        return f"{source.shown} row {index - source.first_row + 1}"

    wanted = list(descriptor.rows)
    if names:
        table, undecodable = _plain(pa.concat_tables(pieces))
    else:
        # Arrow's kernels forget how many rows a table without columns has.
        table, undecodable = _nulls(footer, names, len(wanted)), {}
    bad = {
        index: Failure.of(RowErrorKind.BAD_RECORD, f"{place(index)}: {why}")
        for index, why in (damaged | {wanted[at]: why for at, why in undecodable.items()}).items()
    }
    return table, bad, place


def _footer(
    source: SourceFile, cache: ReadCache, unchanged: Callable[[SourceFile], None]
) -> Footer:
    def load() -> Footer:
        try:
            return read_footer(source.uri)
        finally:
            unchanged(source)

    # Thrift in memory is some four times its size in the file.
    return cache.get(
        ("footer", *identity(source)), load, lambda found: 4 * found.metadata.serialized_size
    )


def _checked_names(uri: str, footer: Footer, columns: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(footer.schema.names if columns is None else columns))
    for name in names:
        if len(footer.schema.get_all_field_indices(name)) != 1:
            raise BadInput(f"{uri} has no column {name!r}, or has it twice")
    return names


def _spans(footer: Footer, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Row group and rows in it, for rows of the file from `first` to before `last`."""
    group = bisect_right(footer.starts, first) - 1
    while first < last:
        start, end = footer.starts[group], footer.starts[group + 1]
        if first < end:
            yield group, first - start, min(last, end) - start
        first, group = max(first, end), group + 1


def _nulls(footer: Footer, names: tuple[str, ...], rows: int) -> pa.Table:
    columns = [pa.nulls(rows, footer.schema.field(name).type) for name in names]
    # The extra column carries the number of rows for a table without columns.
    counted = pa.Table.from_arrays([*columns, pa.nulls(rows)], names=[*names, "\0rows"])
    return counted.drop_columns("\0rows")


def _plain(table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """The table in plain types and memory of its own; position to phrase for undecodable text."""
    plain = pa.schema([(column.name, plain_type(column.type)) for column in table.schema])
    if table.schema.types == plain.types:
        table = pa.Table.from_arrays(table.columns, schema=plain)
    else:
        table = table.cast(plain)
    table = table.take(pa.array(range(table.num_rows)))
    bad: dict[int, str] = {}
    for name in table.column_names:
        strange = _not_utf8(table.column(name))
        bad |= dict.fromkeys(strange, f"column {name!r} is not valid UTF-8")
        if strange:
            mask = pa.array([at not in strange for at in range(table.num_rows)])
            positions = pa.array(range(table.num_rows)).filter(mask)
            table = _blanked(table, name, positions)
    return table, bad


def _not_utf8(column: pa.ChunkedArray) -> set[int]:
    """Positions of strings that Parquet carried without looking at them."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return {at for at in range(len(column)) if not _is_valid(column, at)}
    return set()


def _is_valid(column: pa.ChunkedArray, at: int) -> bool:
    try:
        column.take(pa.array([at])).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _blanked(table: pa.Table, name: str, good: pa.Array) -> pa.Table:
    """The table with nulls in a column everywhere but at the good positions."""
    places: list[int | None] = [None] * table.num_rows
    for at in good.to_pylist():
        places[at] = at
    column = table.column(name).take(pa.array(places, pa.int64()))
    return table.set_column(table.column_names.index(name), name, column)


def iter_batches(uri: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """A whole file in record batches; BadInput when it is damaged."""
    with storage.open_input(uri, sequential=True) as handle:
        small = handle.seek(0, io.SEEK_END) <= WHOLE_BYTES
        handle.seek(0)
        # Arrow reads memory without asking Python for every piece of it.
        source = pa.BufferReader(handle.read()) if small else handle
        try:
            yield from pq.ParquetFile(source, pre_buffer=not small).iter_batches(batch_rows)
        except MemoryError as error:
            raise no_memory(uri, "its rows") from error
        except FAULTS as error:
            raise BadInput(f"{uri} is damaged and cannot be read: {error}") from error
