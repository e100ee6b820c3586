"""Rows of one row group by way of the cache: decoded whole, or as a stream where it is too large."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.formats.parquet import decoded_size
from nightshift.common.formats.parquet.footer import Footer, decoding
from nightshift.common.formats.parquet.read_cache import DamagedError, ReadCache, RowGroupStream
from nightshift.common.formats.source_files import check_unchanged

PIECE_ROWS = 4096
"""Most rows of a piece of a row group that is too large for the cache."""

PIECE_BYTES = 2**20
"""A piece may always be this large, however small the cache is."""

STREAM_BYTES = 4 * 2**20
"""Most bytes that are read at once of each column of such a row group."""


class _LargerError(Exception):
    """A row group is too large for the cache, other than its estimate."""


def identity(source: SourceFile) -> tuple[str, int, str]:
    """The part of a cache key that names a file and its content."""
    return source.uri, source.size, source.fingerprint


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The columns `names` of one row group, read by way of the cache.

    After each read of the file, before what was read is kept, SourceChanged is raised for a file that
    is not the planned one.
    """

    source: SourceFile
    footer: Footer
    number: int
    names: tuple[str, ...]
    cache: ReadCache

    def rows(self, low: int, high: int) -> list[pa.Table]:
        """Rows `low` to before `high`; DamagedError where they cannot be decoded."""
        key = (*identity(self.source), self.number, self.names)
        self._admit(self._size_bytes())
        if self._size_bytes() <= self.cache.limit_bytes // 2:
            with suppress(_LargerError):
                whole = self.cache.get(key, self._whole, lambda table: int(table.nbytes))
                return [whole.slice(low, high - low)]
        stream = self.cache.stream(key, lambda: self._stream(key))
        size = stream.piece_rows
        found = []
        for number in range(low // size, -(-high // size)):
            begin = max(low - number * size, 0)
            end = min(high - number * size, size)
            found.append(stream.piece(number).slice(begin, end - begin))
        return found

    def _size_bytes(self) -> int:
        """The size that decoding showed, else an estimate, which is kept."""
        key = (self.number, self.names)
        known = self.footer.group_bytes.get(key)
        if known is None:
            known = self.footer.group_bytes[key] = self._estimated_bytes()
        return known

    def _estimated_bytes(self) -> int:
        values: dict[str, float] = {}
        group = self.footer.metadata.row_group(self.number)
        half = self.cache.limit_bytes // 2
        if self._is_counted:
            try:
                schema = self.footer.schema
                given = [each.name for each in schema if pa.types.is_dictionary(each.type)]
                uri, names = self.source.uri, self.names
                size, most_of_row = decoded_size.examined(uri, group, names, given)
            finally:
                check_unchanged(self.source)
            fitting = max(1, max(PIECE_BYTES, half) // max(1, most_of_row))
            self.footer.piece_rows[self.number, self.names] = min(PIECE_ROWS, fitting)
            return size
        if decoded_size.may_be_larger(group, self.names, group.num_rows, half):
            try:
                values = decoded_size.value_bytes(self.source.uri, group, self.names)
            finally:
                check_unchanged(self.source)
        return decoded_size.decoded_bytes(group, self.names, values)

    def _whole(self) -> pa.Table:
        try:
            with self._decoding(), storage.open_input(self.source.uri) as handle:
                file = pq.ParquetFile(handle, metadata=self.footer.metadata, pre_buffer=True)
                if self._is_counted:
                    rows = self.footer.piece_rows[self.number, self.names]
                    table = pa.Table.from_batches(self._fitting(self._counted(file, rows)))
                else:
                    table = file.read_row_group(self.number, columns=list(self.names))
                table = table.select(self.names)
        finally:
            check_unchanged(self.source)
        self.footer.group_bytes[self.number, self.names] = table.nbytes
        return table

    @property
    def _is_counted(self) -> bool:
        """Whether the file is counted while it is decoded: nobody vouches for it, as we do for copies of our own."""
        return self.cache.admit is not None and self.source.origin is None

    def _admit(self, size_bytes: int) -> None:
        if self._is_counted and self.cache.admit is not None:
            source = self.source
            self.cache.admit(source.uri, source.size, (self.number, self.names), size_bytes)

    def _counted(self, file: pq.ParquetFile, piece_rows: int) -> Iterator[pa.RecordBatch]:
        """The row group in pieces, which are counted where nobody vouches for the file."""
        rows = size = 0
        sizes = decoded_size.PieceSizes() if self._is_counted else None
        for batch in file.iter_batches(
            piece_rows, row_groups=[self.number], columns=list(self.names)
        ):
            rows += batch.num_rows
            if sizes is not None:
                size += sizes.bytes_of(batch)
                self._admit(size)
            yield batch
        if rows != self.footer.metadata.row_group(self.number).num_rows:
            raise self._damaged()

    def _fitting(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size, half, sizes = 0, self.cache.limit_bytes // 2, decoded_size.PieceSizes()
        for batch in batches:
            size += sizes.bytes_of(batch)
            if size > half:
                self.footer.group_bytes[self.number, self.names] = size
                raise _LargerError
            yield batch

    def _stream(self, key: tuple[object, ...]) -> RowGroupStream:
        rows = self.footer.metadata.row_group(self.number).num_rows
        piece_bytes = max(PIECE_BYTES, self.cache.limit_bytes // 8)
        fitting = rows * piece_bytes // max(1, self._size_bytes())
        most_rows = self.footer.piece_rows.get((self.number, self.names), PIECE_ROWS)
        piece_rows = min(most_rows, max(1, fitting))
        return RowGroupStream(self._batches, piece_rows, self.cache, key)

    def _batches(self, piece_rows: int, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        """The row group from its front, with a small buffer for each column."""
        buffer_bytes = self.cache.limit_bytes // 8 // max(1, len(self.names))
        with self._decoding():
            file = pq.ParquetFile(
                stack.enter_context(storage.open_input(self.source.uri)),
                metadata=self.footer.metadata,
                buffer_size=max(2**16, min(STREAM_BYTES, buffer_bytes)),
                pre_buffer=False,
            )
            for batch in self._counted(file, piece_rows):
                check_unchanged(self.source)
                yield batch.select(self.names)

    def _decoding(self) -> AbstractContextManager[None]:
        return decoding(self.source.uri, f"row group {self.number}", lambda _: self._damaged())

    def _damaged(self) -> DamagedError:
        check_unchanged(self.source)
        return DamagedError(f"row group {self.number} is damaged and cannot be read")
