"""Parquet footers: what a file says of its columns, row groups and metadata."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable

METADATA_PREFIX = "nightshift."
"""Provenance in a part's key-value metadata starts with this."""

FAULTS = (pa.ArrowException, OSError)
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


def no_memory(uri: str, what: str) -> StorageUnavailable:
    """Says nothing about the file: Arrow's error is a MemoryError and an ArrowException at once."""
    return StorageUnavailable(f"{uri}: not enough memory to decode {what}")
