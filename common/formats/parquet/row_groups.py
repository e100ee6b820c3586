"""Rows of one row group by way of the cache: decoded whole, or as a stream where it is too large."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.formats.parquet.footer import FAULTS, Footer, no_memory
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.parquet.row_group_stream import RowGroupStream

PIECE_ROWS = 4096
"""Most rows of a piece of a row group that is too large for the cache."""

PIECE_BYTES = 2**20
"""A piece may always be this large, however small the cache is."""

STREAM_BYTES = 4 * 2**20
"""Most bytes that are read at once of each column of such a row group."""


class DamagedError(Exception):
    """A row group that cannot be decoded; only its own rows are bad."""


def identity(source: SourceFile) -> tuple[str, int, str]:
    """The part of a cache key that names a file and its content."""
    return source.uri, source.size, source.fingerprint


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces of one stream in the cache."""

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
    """The columns `names` of one row group, read by way of the cache.

    `unchanged` raises SourceChanged; it is called after each read of the file, before what was
    read is kept.
    """

    source: SourceFile
    footer: Footer
    number: int
    names: tuple[str, ...]
    cache: ReadCache
    unchanged: Callable[[SourceFile], None]

    def rows(self, low: int, high: int) -> list[pa.Table]:
        """Rows `low` to before `high`; DamagedError where they cannot be decoded."""
        key = (*identity(self.source), self.number, self.names)
        if self._size_bytes() <= self.cache.limit_bytes // 2:
            whole = self.cache.get(key, self._whole, lambda table: int(table.nbytes))
            return [whole.slice(low, high - low)]
        stream = self.cache.stream(key, self._stream)
        size = stream.piece_rows
        # An earlier stream may have left pieces of another size in the cache.
        pieces = _Pieces(self.cache, (*key, size))
        found = []
        for number in range(low // size, -(-high // size)):
            begin = max(low - number * size, 0)
            end = min(high - number * size, size)
            found.append(stream.piece(number, pieces).slice(begin, end - begin))
        return found

    def _size_bytes(self) -> int:
        """The size that decoding showed, else the size of the encoded columns in the footer."""
        known = self.footer.group_bytes.get((self.number, self.names))
        if known is not None:
            return known
        facts = self.footer.metadata.row_group(self.number)
        chunks = (facts.column(at) for at in range(facts.num_columns))
        names = set(self.names)
        return sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if not names.isdisjoint({chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]})
        )

    def _whole(self) -> pa.Table:
        try:
            with storage.open_input(self.source.uri) as handle:
                table = decode(handle, self.footer, self.number, self.names)
        except MemoryError as error:
            raise no_memory(self.source.uri, f"row group {self.number}") from error
        except FAULTS as error:
            raise self._damaged() from error
        finally:
            self.unchanged(self.source)
        self.footer.group_bytes[self.number, self.names] = table.nbytes
        return table

    def _stream(self) -> RowGroupStream:
        rows = self.footer.metadata.row_group(self.number).num_rows
        piece_bytes = max(PIECE_BYTES, self.cache.limit_bytes // 8)
        fitting = rows * piece_bytes // max(1, self._size_bytes())
        return RowGroupStream(
            self._batches,
            min(PIECE_ROWS, max(1, fitting)),
            lambda error: isinstance(error, DamagedError),
        )

    def _batches(self, piece_rows: int, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        """The row group from its front, with a small buffer for each column."""
        metadata, rows = self.footer.metadata, 0
        buffer_bytes = self.cache.limit_bytes // 8 // max(1, len(self.names))
        try:
            file = pq.ParquetFile(
                stack.enter_context(storage.open_input(self.source.uri)),
                metadata=metadata,
                buffer_size=max(2**16, min(STREAM_BYTES, buffer_bytes)),
                pre_buffer=False,
            )
            for batch in file.iter_batches(
                piece_rows, row_groups=[self.number], columns=list(self.names)
            ):
                self.unchanged(self.source)
                rows += batch.num_rows
                yield batch.select(self.names)
        except MemoryError as error:
            raise no_memory(self.source.uri, f"row group {self.number}") from error
        except FAULTS as error:
            self.unchanged(self.source)
            raise self._damaged() from error
        if rows != metadata.row_group(self.number).num_rows:
            raise self._damaged()

    def _damaged(self) -> DamagedError:
        return DamagedError(f"row group {self.number} is damaged and cannot be read")


def decode(handle: BinaryIO, footer: Footer, group: int, names: tuple[str, ...]) -> pa.Table:
    """The columns of one row group, decoded at once."""
    file = pq.ParquetFile(handle, metadata=footer.metadata, pre_buffer=True)
    return file.read_row_group(group, columns=list(names)).select(names)
