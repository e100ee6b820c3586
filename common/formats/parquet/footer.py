"""Parquet footers: what a file says of its columns, row groups and metadata."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.formats.parquet.foreign_footer import (
    EncryptedError,
    UnsoundFooterError,
    checked_metadata,
)
from nightshift.common.public_text import marked, private

METADATA_PREFIX = "nightshift."
"""Begins the keys of the provenance in the metadata of a part."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file; `starts` has the first row of each row group, and the number of rows.

    `group_bytes` has the decoded size of row groups with the wanted columns, as far as known, and
    `piece_rows` how many rows of them are decoded at once where nobody vouches for the file.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: list[int]
    group_bytes: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)
    piece_rows: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)


def read_footer(uri: str) -> Footer:
    """The footer of a file; BadInput when it is missing or damaged, or columns are encrypted."""

    def damaged(error: Exception) -> BadInput:
        if isinstance(error, EncryptedError):
            return BadInput(
                f"{private(uri)}: {marked(error)}, and Nightshift has no keys: write a file without encryption"
            )
        why = f" ({error})" if isinstance(error, UnsoundFooterError) else ""
        return BadInput(
            f"{private(uri)}: its Parquet footer is missing or damaged{why}; the file was cut off or is not Parquet: copy "
            "it again"
        )

    with storage.open_input(uri) as handle, decoding(uri, "its footer", damaged):
        metadata = checked_metadata(handle)
        schema = metadata.schema.to_arrow_schema()
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    starts = accumulate((group.num_rows for group in groups), initial=0)
    return Footer(metadata, schema, list(starts))


def input_schema(footer: Footer) -> pa.Schema:
    """Column names and types of a file, without metadata."""
    return pa.schema([(column.name, column.type) for column in footer.schema])


def first_rows(footer: Footer, limit: int | None) -> int:
    """How many rows a file has, `limit` at most."""
    rows = footer.starts[-1]
    return rows if limit is None else min(limit, rows)


def known_nulls(footer: Footer, column: str) -> int:
    """How many nulls a flat column has by its statistics; 0 where there are no statistics."""
    metadata = footer.metadata
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if column not in paths:
        return 0
    at = paths.index(column)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found = [group.column(at).statistics for group in groups]
    return sum(each.null_count for each in found if each is not None and each.has_null_count)


@contextmanager
def decoding(uri: str, what: str, damaged: Callable[[Exception], Exception]) -> Iterator[None]:
    """What pyarrow raises for damaged content becomes the error that `damaged` makes of it.

    Errors of reading are StorageUnavailable already. A lack of memory, which Arrow raises as both a
    MemoryError and an ArrowException, is no fault of the file, and StorageUnavailable too.
    """
    try:
        yield
    except MemoryError as error:
        raise StorageUnavailable(f"{private(uri)}: not enough memory to decode {what}") from error
    except (pa.ArrowException, OSError) as error:
        raise damaged(error) from error
