"""Parquet footers: what a file says of its columns, row groups and metadata."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable

METADATA_PREFIX = "nightshift."
"""Begins the keys of the provenance in the metadata of a part."""

FAULTS = (pa.ArrowException, OSError)
"""What pyarrow raises for damaged content; errors of reading are StorageUnavailable already."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file; `starts` has the first row of each row group, and the number of rows.

    `group_bytes` has the decoded size of row groups with the wanted columns, as far as known.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: list[int]
    group_bytes: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)


def read_footer(uri: str) -> Footer:
    """The footer of a file; BadInput when it is missing or damaged."""
    with storage.open_input(uri) as handle:
        try:
            metadata = pq.ParquetFile(handle).metadata
            schema = metadata.schema.to_arrow_schema()
        except MemoryError as error:
            raise no_memory(uri, "its footer") from error
        except FAULTS as error:
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
    """How many nulls a flat column has by its statistics; 0 where there are no statistics."""
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


def no_memory(uri: str, what: str) -> StorageUnavailable:
    """The error for a lack of memory, which is no fault of the file.

    Arrow's error is both a MemoryError and an ArrowException.
    """
    return StorageUnavailable(f"{uri}: not enough memory to decode {what}")
