"""What a format of files can do; `formats.known` has the table of all of them."""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from nightshift.common.descriptor import Descriptor
from nightshift.common.formats.csv.types import Types
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.row_errors import Failure
from nightshift.common.spec import InputSpec
from nightshift.common.storage import FileInfo


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan wants to know of its files: batches of at most `batch_rows` rows and `batch_bytes` bytes, of
    the bytes of the columns `sized` (None: all) where the format tells them apart.
    """

    batch_rows: int
    batch_bytes: int
    id_column: str | None = None
    sized: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a file of lines: the byte of the first line, and the byte after each batch."""

    rows: int
    start: int
    ends: "array[int]"


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known of one file: its rows, its columns, and where its batches end.

    `scan` has the bytes of the batches of a file of lines. `cuts` has the number of rows up to the end of
    each batch; None where all batches but the last have `batch_rows` rows. `texts` has the types that the
    texts of each column fit, where the type of a column is decided over all files.
    """

    rows: int
    schema: pa.Schema
    scan: Scan | None = None
    cuts: "array[int] | None" = None
    texts: Types | None = None


Found = tuple[pa.Table, dict[int, Failure], Callable[[int], str]]
"""The rows of a batch in order, null where they are bad; why rows are bad, by row index; and a
function that names the place of a row in its file."""

Examine = Callable[[FileInfo, FileInfo, Wanted, int | None], Examined]
"""Looks at a file and cuts it into batches: the file as it was given, the same or its copy, what is wanted,
and the most rows."""

Read = Callable[[Descriptor, Sequence[str] | None, ReadCache, pa.Schema, Collection[str]], Found]
"""The rows of a batch with some columns (None: all), the types of the plan, and the columns that must have these
types exactly. Raises FileNotFoundError, SourceChanged, StorageUnavailable."""

Copy = Callable[[FileInfo, InputSpec, int | None, BinaryIO], None]
"""Writes the copy of a file, or of its first rows, by which the file is planned and read."""

Written = Callable[
    [Iterable[pa.RecordBatch], pa.Schema, BinaryIO, Mapping[str, str]], Iterator[int]
]
"""Writes rows of one schema and metadata, where the format has a place for metadata, as far as its numbers are
taken: each is that of rows written since the one before. The file is whole once the numbers have ended."""

Batches = Callable[[str, pa.Schema, int], Iterator[pa.RecordBatch]]
"""The rows of a file that `Written` wrote, in batches of the given rows, with the columns and types of a schema."""


def no_parts(uri: str, _schema: pa.Schema, _rows: int) -> Iterator[pa.RecordBatch]:
    """The reader of parts of a format in which no job has output: it refuses."""
    raise ValueError(f"{uri}: no job has output in this format")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of input files, of parts and of files that commands write.

    `copy` is None where a file can always be read from its middle; `is_copied` says that no file can.
    Files of the format begin with `magic`. `says_types`: each file says the types of its columns, and they
    must agree. `says_columns`: all files have the same columns, and each row has the types of its column.
    `may_have_more`: rows may have columns and keys that the first rows lack.
    """

    title: str
    examine: Examine
    read: Read
    written: Written
    copy: Copy | None = None
    copy_suffix: str = ""
    is_copied: bool = False
    magic: bytes = b""
    says_types: bool = False
    says_columns: bool = False
    may_have_more: bool = False
    part_batches: Batches = no_parts
    part_metadata: Callable[[str], dict[str, str]] = lambda _: {}

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        sink: BinaryIO,
        metadata: Mapping[str, str],
    ) -> int:
        """Writes rows of one schema and metadata; returns the rows."""
        return sum(self.written(batches, schema, sink, metadata))
