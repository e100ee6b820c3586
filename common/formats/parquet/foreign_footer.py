"""Check the footer of a Parquet file before Arrow's C++ library reads its column chunks.

pyarrow calls the constructors of column chunks and of statistics without a handler for C++ exceptions, so what
they refuse ends the process: columns that are encrypted below a plaintext footer, statistics that are shorter
than a value of their column, and histograms of other levels than the column has. Here the column chunks are read from the footer's own bytes (parquet.thrift, in
Thrift's compact protocol), and pyarrow gets the same bytes only once they are sound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common.formats.parquet.footer_trial import TrialFailedError, try_footer

MAGIC = b"PAR1"

TAIL_BYTES = 2**16
"""Read of the end of a file at first: most footers are smaller."""

MOST_DEPTH = 32
"""Structs within structs; parquet.thrift needs less than ten."""

PHYSICAL_TYPES = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
"""By their numbers in parquet.thrift."""

VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

BINARY, LIST, SET, STRUCT = 8, 9, 10, 12
"""Types of the compact protocol; 4 to 6 are varints."""

MOST_FIELD = 2**15 - 1
"""Numbers of fields have 16 bits."""

FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8, 13: 16}
"""Bytes of true, false, a byte, a double and a UUID."""


class UnsoundFooterError(OSError):
    """The column chunks of a footer cannot be handed to pyarrow; the message says why. An OSError, as pyarrow
    raises for other damage of a file.
    """


class EncryptedError(UnsoundFooterError):
    """Columns of the file are encrypted."""


@dataclass(slots=True)
class Chunk:
    """A column chunk as its metadata describe it.

    `physical_type` is None without metadata. `shortest` has the bytes of the shortest statistic, None without any. The levels are those of its histograms, 0 without one.
    """

    physical_type: int | None = None
    shortest: int | None = None
    is_encrypted: bool = False
    has_text_bytes: bool = False
    repetition_levels: int = 0
    definition_levels: int = 0


def open_parquet(file: BinaryIO, **options: Any) -> pq.ParquetFile:
    """The file as pyarrow reads it, with metadata that are safe to use. Raises UnsoundFooterError, and what pyarrow
    raises for a file without a footer.
    """
    return pq.ParquetFile(file, metadata=checked_metadata(file), **options)


def checked_metadata(file: BinaryIO) -> pq.FileMetaData:
    """The metadata of a file whose column chunks pyarrow can read; raises as `open_parquet`."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little") if tail[-4:] == MAGIC else 0
    if not 0 < length <= size - 12:
        return pq.ParquetFile(pa.BufferReader(tail)).metadata  # raises: it is missing or encrypted
    if length > len(tail) - 8:
        file.seek(size - 8 - length)
        tail = file.read(length + 8)
    footer = tail[-8 - length : -8]
    # The very bytes that are checked: the file may be another one by now.
    content = MAGIC + footer + tail[-8:]
    _try(content, footer)
    try:
        metadata = pq.ParquetFile(pa.BufferReader(content)).metadata
    except UnicodeDecodeError:
        raise UnsoundFooterError("the name of a column is not UTF-8") from None
    columns = [_Column.of(metadata.schema.column(at)) for at in range(metadata.num_columns)]
    for group in row_groups(footer):
        _check(group, columns)
    return metadata


def _try(content: bytes, footer: bytes) -> None:
    try:
        try_footer(content)
    except TrialFailedError as error:
        if any(chunk.is_encrypted for group in row_groups(footer) for chunk in group):
            raise EncryptedError("columns are encrypted") from None
        raise UnsoundFooterError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Column:
    """What the column chunks of a column must fit."""

    physical_type: str
    value_bytes: int
    repetition_levels: int
    definition_levels: int

    @classmethod
    def of(cls, column: Any) -> "_Column":
        name = column.physical_type
        value_bytes = 0 if name == "BYTE_ARRAY" else VALUE_BYTES.get(name, column.length)
        levels = column.max_repetition_level + 1, column.max_definition_level + 1
        return cls(name, value_bytes, *levels)


def _check(group: list[Chunk], columns: list[_Column]) -> None:
    if any(chunk.is_encrypted for chunk in group):
        raise EncryptedError("columns are encrypted")
    if len(group) != len(columns):
        raise UnsoundFooterError("a row group has other columns than the file")
    for chunk, column in zip(group, columns, strict=True):
        name = column.physical_type
        if chunk.physical_type is None or PHYSICAL_TYPES[chunk.physical_type] != name:
            raise UnsoundFooterError("a column chunk has another type than its column")
        if chunk.shortest is not None and chunk.shortest < column.value_bytes:
            raise UnsoundFooterError("a statistic is shorter than a value of its column")
        if chunk.has_text_bytes and name != "BYTE_ARRAY":
            raise UnsoundFooterError("a column without texts has a size of its texts")
        levels = (chunk.repetition_levels, column.repetition_levels)
        if levels[0] not in (0, levels[1]) or chunk.definition_levels not in (
            0,
            column.definition_levels,
        ):
            raise UnsoundFooterError("a histogram has other levels than its column")


def row_groups(footer: bytes) -> Iterator[list[Chunk]]:
    """The column chunks of each row group. Raises UnsoundFooterError for bytes that are not a footer."""
    try:
        yield from _Reader(footer).row_groups()
    except IndexError:
        raise UnsoundFooterError("it ends too early") from None


class _Reader:
    """Reads the compact protocol; IndexError beyond its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def row_groups(self) -> Iterator[list[Chunk]]:
        for number, kind in self.fields():
            if (number, kind) == (4, LIST):
                for _ in range(self.structs()):
                    yield self.row_group()
            else:
                self.skip(kind)

    def row_group(self) -> list[Chunk]:
        found: list[Chunk] = []
        for number, kind in self.fields():
            if (number, kind) == (1, LIST):
                found += [self.chunk() for _ in range(self.structs())]
            else:
                self.skip(kind)
        return found

    def chunk(self) -> Chunk:
        found = Chunk()
        for number, kind in self.fields():
            if (number, kind) == (3, STRUCT):
                self.column_metadata(found)
            else:
                # crypto_metadata and encrypted_column_metadata
                found.is_encrypted = found.is_encrypted or number in (8, 9)
                self.skip(kind)
        return found

    def column_metadata(self, found: Chunk) -> None:
        for number, kind in self.fields():
            if (number, kind) == (1, 5):
                physical_type = self.number()
                if not 0 <= physical_type < len(PHYSICAL_TYPES):
                    raise UnsoundFooterError("a column has an unknown type")
                found.physical_type = physical_type
            elif (number, kind) == (12, STRUCT):
                self.statistics(found)
            elif (number, kind) == (16, STRUCT):
                self.size_statistics(found)
            else:
                self.skip(kind)

    def size_statistics(self, found: Chunk) -> None:
        for number, kind in self.fields():
            found.has_text_bytes = found.has_text_bytes or number == 1
            if number in (2, 3) and kind == LIST:
                begin = self.at
                _, count = self.list_head()
                self.at = begin
                if number == 2:
                    found.repetition_levels = count
                else:
                    found.definition_levels = count
            self.skip(kind)

    def statistics(self, found: Chunk) -> None:
        for number, kind in self.fields():
            begin = self.at
            self.skip(kind)
            if number in (1, 2, 5, 6) and kind == BINARY:  # max, min, max_value, min_value
                self.at, end = begin, self.at
                length = self.varint()
                self.at = end
                if found.shortest is None or length < found.shortest:
                    found.shortest = length

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; whoever iterates reads or skips the value."""
        number = 0
        while head := self.data[self.at]:
            self.at += 1
            step = head >> 4
            number = number + step if step else self.number()
            if not 0 < number <= MOST_FIELD:
                # The C++ library takes the lower 16 bits for the number, and would see another field.
                raise UnsoundFooterError("a field has no number of its own")
            yield number, head & 15
        self.at += 1

    def structs(self) -> int:
        kind, count = self.list_head()
        # The C++ library reads structs here whatever the type of the elements is.
        if kind != STRUCT and count:
            raise UnsoundFooterError("a list has elements of another type")
        return count

    def list_head(self) -> tuple[int, int]:
        head = self.byte()
        count = head >> 4
        return head & 15, self.size() if count == 15 else count

    def size(self) -> int:
        """A number of bytes or of elements, each of which has a byte at least."""
        found = self.varint()
        if found > len(self.data) - self.at:
            raise IndexError
        return found

    def byte(self) -> int:
        found = self.data[self.at]
        self.at += 1
        return found

    def varint(self) -> int:
        found = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise UnsoundFooterError("a number is too long")

    def number(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        if kind in (4, 5, 6):
            while self.data[self.at] > 127:
                self.at += 1
            self.at += 1
        elif kind == BINARY:
            length = self.size()
            self.at += length
        elif kind in (STRUCT, LIST, SET):
            if depth > MOST_DEPTH:
                raise UnsoundFooterError("it is nested too deeply")
            self.skip_all(kind, depth + 1)
        elif kind in FIXED_BYTES:
            self.at += FIXED_BYTES[kind]
        else:  # a map, which parquet.thrift does not have, or an unknown type
            raise UnsoundFooterError("it has values of an unknown type")

    def skip_all(self, kind: int, depth: int) -> None:
        """Skip the values of a struct or a list."""
        if kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth)
            return
        inner, count = self.list_head()
        if inner in (1, 2):
            self.at += count  # a byte each in a list, none in a field
            return
        for _ in range(count):
            self.skip(inner, depth)
