"""Parquet: footers, the rows of a batch out of row groups, and parts."""

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats.parquet.column_types import as_written, plain_type, written_schema
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.parquet.row_group_stream import RowGroupStream
from nightshift.common.states import RowErrorKind

METADATA_PREFIX = "nightshift."
"""Provenance in a part's key-value metadata starts with this."""

PIECE_ROWS = 4096
"""A row group that is too large to be kept is decoded in pieces of at most so many rows."""

PIECE_BYTES = 2**20
"""Pieces need not be smaller than this, however small the cache."""

STREAM_BYTES = 4 * 2**20
"""Read at once of each column of such a row group, at most."""

WHOLE_BYTES = 8 * 2**20
"""A part of at most this size is read at once before it is decoded: twice as fast (measured)."""

GROUP_ROWS = 64 * 1024
GROUP_BYTES = 64 * 2**20
"""A stream of batches is written in row groups of at least this size, whichever comes first."""

COMPRESSED_BYTES = 16 * 1024
"""A part of less (decoded) is not compressed: Zstandard's setup for each column costs more than it
saves."""

_FAULTS = (pa.ArrowException, OSError)
"""What pyarrow raises over content: errors of reading are StorageUnavailable by then."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says about itself: `starts` has the first row of each row group, and the end.

    `group_bytes` keeps what the wanted columns of a row group take when decoded, as far as known.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: list[int]
    group_bytes: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)


def read_footer(uri: str) -> Footer:
    """The footer; BadInput when the file has none that can be read."""
    with storage.open_input(uri) as handle:
        try:
            metadata = pq.ParquetFile(handle).metadata
            schema = metadata.schema.to_arrow_schema()
        except MemoryError as error:
            raise _no_memory(uri, "its footer") from error
        except _FAULTS as error:
            raise BadInput(
                f"{uri}: its Parquet footer is missing or damaged; the file was cut off or is no "
                "Parquet, copy it again"
            ) from error
    starts = [0]
    for group in range(metadata.num_row_groups):
        starts.append(starts[-1] + metadata.row_group(group).num_rows)
    return Footer(metadata, schema, starts)


def input_schema(footer: Footer) -> pa.Schema:
    """Column names and types of a file, without metadata."""
    return pa.schema([(column.name, column.type) for column in footer.schema])


def known_nulls(footer: Footer, column: str) -> int:
    """How many nulls the statistics admit in a flat column; 0 where they say nothing."""
    metadata = footer.metadata
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if column not in paths:
        return 0
    at = paths.index(column)
    nulls = 0
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(at).statistics
        if statistics is not None and statistics.has_null_count:
            nulls += int(statistics.null_count)
    return nulls


# ---------------------------------------------------------------- reading


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    unchanged: Callable[[SourceFile], None],
) -> tuple[pa.Table, dict[int, tuple[RowErrorKind, str]], Callable[[int], str]]:
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
                wanted_group = _Group(source, footer, group, names, cache, unchanged)
                pieces += wanted_group.rows(low, high)
            except _DamagedError as error:
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
        index: (RowErrorKind.BAD_RECORD, f"{place(index)}: {why}")
        for index, why in (damaged | {wanted[at]: why for at, why in undecodable.items()}).items()
    }
    return table, bad, place


class _DamagedError(Exception):
    """A row group that cannot be decoded; its rows are bad, the others of the file are not."""


def _identity(source: SourceFile) -> tuple[str, int, str]:
    return source.uri, source.size, source.fingerprint


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
        ("footer", *_identity(source)), load, lambda found: 4 * found.metadata.serialized_size
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


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The cache as the shelf of one stream."""

    cache: ReadCache
    key: tuple[object, ...]

    def find(self, number: int) -> pa.Table | None:
        """A piece that is still in the cache."""
        return self.cache.find((*self.key, number))

    def keep(self, number: int, piece: pa.Table) -> None:
        """Puts a piece into the cache."""
        self.cache.put((*self.key, number), piece, piece.nbytes)


@dataclass(frozen=True, slots=True)
class _Group:
    """The wanted columns of one row group, as they are read by way of the cache."""

    source: SourceFile
    footer: Footer
    number: int
    names: tuple[str, ...]
    cache: ReadCache
    unchanged: Callable[[SourceFile], None]

    @property
    def key(self) -> tuple[object, ...]:
        return (*_identity(self.source), self.number, self.names)

    @property
    def rows_total(self) -> int:
        return int(self.footer.metadata.row_group(self.number).num_rows)

    @property
    def size_bytes(self) -> int:
        """What was found when it was decoded, else what the footer says of the encoded columns."""
        found = self.footer.group_bytes.get((self.number, self.names))
        return _encoded_bytes(self.footer, self.number, self.names) if found is None else found

    def rows(self, low: int, high: int) -> list[pa.Table]:
        """Rows `low` to before `high`; _DamagedError where they cannot be decoded."""
        if self.size_bytes <= self.cache.limit_bytes // 2:
            whole = self.cache.get(self.key, self._whole, lambda table: int(table.nbytes))
            return [whole.slice(low, high - low)]
        stream = self.cache.stream(self.key, self._stream)
        size = stream.piece_rows
        # What is left of an earlier stream may be cut in another size.
        pieces = _Pieces(self.cache, (*self.key, size))
        found = []
        for number in range(low // size, -(-high // size)):
            begin = max(low - number * size, 0)
            end = min(high - number * size, size)
            found.append(stream.piece(number, pieces).slice(begin, end - begin))
        return found

    def _whole(self) -> pa.Table:
        try:
            table = _decode(self.source.uri, self.footer, self.number, self.names)
        except MemoryError as error:
            raise _no_memory(self.source.uri, f"row group {self.number}") from error
        except _FAULTS as error:
            raise _damaged(self.number) from error
        finally:
            self.unchanged(self.source)
        self.footer.group_bytes[self.number, self.names] = table.nbytes
        return table

    def _stream(self) -> RowGroupStream:
        limit_bytes, columns = self.cache.limit_bytes, max(1, len(self.names))
        fitting = self.rows_total * max(PIECE_BYTES, limit_bytes // 8) // max(1, self.size_bytes)
        opened = partial(
            _batches,
            *(self.source, self.footer, self.number, self.names, self.unchanged),
            max(2**16, min(STREAM_BYTES, limit_bytes // 8 // columns)),
        )
        return RowGroupStream(
            opened,
            min(PIECE_ROWS, max(1, fitting)),
            lambda error: isinstance(error, _DamagedError),
        )


def _batches(
    source: SourceFile,
    footer: Footer,
    group: int,
    names: tuple[str, ...],
    unchanged: Callable[[SourceFile], None],
    buffer_bytes: int,
    piece_rows: int,
    stack: ExitStack,
) -> Iterator[pa.RecordBatch]:
    """A row group from its front, buffered column by column: what is open holds little of it."""
    rows = 0
    try:
        handle = stack.enter_context(storage.open_input(source.uri))
        file = pq.ParquetFile(
            handle, metadata=footer.metadata, buffer_size=buffer_bytes, pre_buffer=False
        )
        for batch in file.iter_batches(piece_rows, row_groups=[group], columns=list(names)):
            unchanged(source)
            rows += batch.num_rows
            yield batch.select(names)
    except MemoryError as error:
        raise _no_memory(source.uri, f"row group {group}") from error
    except _FAULTS as error:
        unchanged(source)
        raise _damaged(group) from error
    if rows != footer.metadata.row_group(group).num_rows:
        raise _damaged(group)


def _damaged(group: int) -> _DamagedError:
    return _DamagedError(f"row group {group} is damaged and cannot be read")


def _no_memory(uri: str, what: str) -> StorageUnavailable:
    """Says nothing about the file: Arrow's error is a MemoryError and an ArrowException at once."""
    return StorageUnavailable(f"{uri}: not enough memory to decode {what}")


def _encoded_bytes(footer: Footer, group: int, names: tuple[str, ...]) -> int:
    facts = footer.metadata.row_group(group)
    roots = set(names)
    chunks = (facts.column(at) for at in range(facts.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in roots or chunk.path_in_schema.partition(".")[0] in roots
    )


def _decode(uri: str, footer: Footer, group: int, names: tuple[str, ...]) -> pa.Table:
    with storage.open_input(uri) as handle:
        file = pq.ParquetFile(handle, metadata=footer.metadata, pre_buffer=True)
        return file.read_row_group(group, columns=list(names)).select(names)


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


# ---------------------------------------------------------------- parts


def write(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sink: BinaryIO, metadata: dict[str, str]
) -> int:
    """Zstandard-compressed, a part of under 16 KiB (COMPRESSED_BYTES) not at all; with the metadata
    in the file's own, and columns of the input in its types. Returns the number of rows.
    """
    target = written_schema(schema).with_metadata(
        {f"{METADATA_PREFIX}{key}": value for key, value in metadata.items()}
    )
    written = 0
    groups = regrouped(batches, schema)
    first = list(islice(groups, 1))
    small = sum(table.nbytes for table in first) < COMPRESSED_BYTES
    compression = "none" if small else "zstd"
    with pq.ParquetWriter(sink, target, compression=compression) as writer:
        for table in chain(first, groups):
            writer.write_table(as_written(table, target), row_group_size=GROUP_ROWS * 4)
            written += table.num_rows
    return written


def regrouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables that make a row group each."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)


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
            raise _no_memory(uri, "its rows") from error
        except _FAULTS as error:
            raise BadInput(f"{uri} is damaged and cannot be read: {error}") from error
