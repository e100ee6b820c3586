"""Parquet read: the rows of a batch out of row groups, and whole parts."""

import io
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats.format import Found
from nightshift.common.formats.parquet.column_types import canonical_type
from nightshift.common.formats.parquet.footer import METADATA_PREFIX, Footer, decoding, read_footer
from nightshift.common.formats.parquet.read_cache import DamagedError, ReadCache
from nightshift.common.formats.parquet.row_groups import RowGroup, identity
from nightshift.common.formats.source_files import check_unchanged
from nightshift.common.formats.values import table_of
from nightshift.common.public_text import marked, private
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

WHOLE_BYTES = 8 * 2**20
"""A part of at most this size is read whole before it is decoded: twice as fast (measured)."""


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
    _fixed: Collection[str] = (),
) -> Found:
    """The rows of a batch, see `format.Read`; SourceChanged where the file is not the planned one."""
    # Before, since what the cache holds is not read again.
    check_unchanged(descriptor.source)
    table, bad, place = rows_of(descriptor, columns, cache)
    return _typed_nulls(table, schema), bad, place


def _typed_nulls(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns of only nulls get the type that other files give them."""
    planned = dict(zip(schema.names, schema.types, strict=True))
    for at, column in enumerate(table.schema):
        if pa.types.is_null(column.type) and column.name in planned:
            typed = table.column(at).cast(planned[column.name])
            table = table.set_column(at, column.name, typed)
    return table


def rows_of(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
) -> Found:
    """The same with the types of the file, which nobody looks at again. The messages of failures do not name
    the place.
    """
    source = descriptor.source
    footer = footer_of(source, cache)
    names = _checked_names(source.uri, footer, columns)
    pieces: list[pa.Table] = []
    bad: dict[int, Failure] = {}
    for start, stop in descriptor.rows.ranges:
        first, last = start - source.first_row, stop - source.first_row
        if last > footer.starts[-1]:
            raise SourceChanged(
                f"{private(source.uri)} holds fewer rows than when the job was submitted"
            )
        for group, low, high in _spans(footer, first, last) if names else ():
            try:
                pieces += RowGroup(source, footer, group, names, cache).rows(low, high)
            except DamagedError as error:
                pieces.append(_nulls(footer, names, high - low))
                begin = source.first_row + footer.starts[group]
                failure = Failure(RowErrorKind.BAD_RECORD, str(error))
                bad |= dict.fromkeys(range(begin + low, begin + high), failure)

    def place(index: int) -> str:
        return f"{source.given_uri} row {index - source.first_row + 1}"

    wanted = list(descriptor.rows)
    if not names:
        # Arrow's kernels forget how many rows a table without columns has.
        return _nulls(footer, names, len(wanted)), bad, place
    table, undecodable = _decoded_text(_copied(pa.concat_tables(pieces)))
    bad |= {wanted[at]: failure for at, failure in undecodable.items()}
    return table, bad, place


def footer_of(source: SourceFile, cache: ReadCache) -> Footer:
    """The footer of a planned file, by way of the cache; SourceChanged where it is another file now."""

    def load() -> Footer:
        try:
            return read_footer(source.uri)
        finally:
            check_unchanged(source)

    # In memory a footer takes about four times its size in the file.
    return cache.get(
        ("footer", *identity(source)), load, lambda found: 4 * found.metadata.serialized_size
    )


def _checked_names(uri: str, footer: Footer, columns: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(footer.schema.names if columns is None else columns))
    for name in names:
        if len(footer.schema.get_all_field_indices(name)) != 1:
            raise BadInput(f"{private(uri)} has no column {name!r}, or has it twice")
    return names


def _spans(footer: Footer, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """The row groups that hold the rows `first` to before `last` of the file, with the rows in each."""
    group = bisect_right(footer.starts, first) - 1
    while first < last:
        start, end = footer.starts[group], footer.starts[group + 1]
        if first < end:
            yield group, first - start, min(last, end) - start
        first, group = max(first, end), group + 1


def _nulls(footer: Footer, names: tuple[str, ...], rows: int) -> pa.Table:
    return table_of({name: pa.nulls(rows, footer.schema.field(name).type) for name in names}, rows)


def _copied(table: pa.Table) -> pa.Table:
    """The table in canonical types and in memory of its own."""
    target = pa.schema([(column.name, canonical_type(column.type)) for column in table.schema])
    if table.schema.types == target.types:
        table = pa.Table.from_arrays(table.columns, schema=target)
    else:
        table = table.cast(target)
    return table.take(pa.array(range(table.num_rows)))


def _decoded_text(table: pa.Table) -> tuple[pa.Table, dict[int, Failure]]:
    """The table with null for each text that is not valid UTF-8, and the positions of those rows."""
    bad: dict[int, Failure] = {}
    for at, name in enumerate(table.column_names):
        column = table.column(name)
        # Parquet carries strings without looking at their bytes.
        if _is_valid(column):
            continue
        # A copy of the row: the slice of a nested column is checked with the texts of all rows.
        places = [row if _is_valid(column.take([row])) else None for row in range(len(column))]
        table = table.set_column(at, name, column.take(pa.array(places, pa.int64())))
        failure = Failure(RowErrorKind.BAD_RECORD, f"column {name!r} is not valid UTF-8")
        bad |= {row: failure for row, place in enumerate(places) if place is None}
    return table, bad


def _is_valid(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def part_batches(uri: str, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """A whole part in record batches of one schema; BadInput when it is damaged. No link is followed."""
    with storage.open_input(uri, sequential=True, links=False) as handle:
        small = handle.seek(0, io.SEEK_END) <= WHOLE_BYTES
        handle.seek(0)
        # Arrow reads from memory without a call to Python for every piece.
        source = pa.BufferReader(handle.read()) if small else handle
        with decoding(
            uri,
            "its rows",
            lambda error: BadInput(
                f"{private(uri)} is damaged and cannot be read: {marked(error)}"
            ),
        ):
            for batch in pq.ParquetFile(source, pre_buffer=not small).iter_batches(batch_rows):
                bare = batch.replace_schema_metadata(None)
                yield bare if bare.schema.equals(schema) else bare.select(schema.names).cast(schema)


def part_metadata(uri: str) -> dict[str, str]:
    """The provenance in a Parquet part, without the prefix of its keys."""
    prefix = METADATA_PREFIX.encode()
    known: dict[bytes, bytes] = read_footer(uri).metadata.metadata or {}
    return {
        key.removeprefix(prefix).decode(): value.decode()
        for key, value in known.items()
        if key.startswith(prefix)
    }
