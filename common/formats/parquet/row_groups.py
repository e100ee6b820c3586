"""Rows of one row group by way of the cache: decoded whole, or as a stream where it is too large."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.formats.parquet.footer import FAULTS, Footer, no_memory
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.parquet.row_group_stream import RowGroupStream

PIECE_ROWS = 4096
"""A row group that is too large to be kept is decoded in pieces of at most so many rows."""

PIECE_BYTES = 2**20
"""Pieces need not be smaller than this, however small the cache."""

STREAM_BYTES = 4 * 2**20
"""Read at once of each column of such a row group, at most."""


class DamagedError(Exception):
    """A row group that cannot be decoded; its rows are bad, the others of the file are not."""


def identity(source: SourceFile) -> tuple[str, int, str]:
    """The file in the keys of a cache: another content has another identity."""
    return source.uri, source.size, source.fingerprint


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
class RowGroup:
    """The wanted columns of one row group, as they are read by way of the cache."""

    source: SourceFile
    footer: Footer
    number: int
    names: tuple[str, ...]
    cache: ReadCache
    unchanged: Callable[[SourceFile], None]

    @property
    def key(self) -> tuple[object, ...]:
        """The row group and its columns in the cache."""
        return (*identity(self.source), self.number, self.names)

    @property
    def rows_total(self) -> int:
        """Rows of the whole row group."""
        return int(self.footer.metadata.row_group(self.number).num_rows)

    @property
    def size_bytes(self) -> int:
        """What was found when it was decoded, else what the footer says of the encoded columns."""
        found = self.footer.group_bytes.get((self.number, self.names))
        return _encoded_bytes(self.footer, self.number, self.names) if found is None else found

    def rows(self, low: int, high: int) -> list[pa.Table]:
        """Rows `low` to before `high`; DamagedError where they cannot be decoded."""
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
            raise no_memory(self.source.uri, f"row group {self.number}") from error
        except FAULTS as error:
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
            lambda error: isinstance(error, DamagedError),
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
        raise no_memory(source.uri, f"row group {group}") from error
    except FAULTS as error:
        unchanged(source)
        raise _damaged(group) from error
    if rows != footer.metadata.row_group(group).num_rows:
        raise _damaged(group)


def _damaged(group: int) -> DamagedError:
    return DamagedError(f"row group {group} is damaged and cannot be read")


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
