"""The process of a trial: reads footers from its standard input, see `footer_trial`.

Run by path, so that nothing else of ours is imported. A footer that is damaged in a way that pyarrow reports is
answered as any other: the parent reads the same bytes and gets the same error.
"""

import resource
import sys
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DONE = b"."
"""The answer for each footer that did not end the process, as `footer_trial.DONE`."""


def main() -> None:
    """Read footers, each behind its length in 8 bytes, little-endian, until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := given.read(8)) == 8:
        file = given.read(int.from_bytes(head, "little"))
        with suppress(Exception):
            read(pq.ParquetFile(pa.BufferReader(file)).metadata)
        answers.write(DONE)
        answers.flush()


def read(metadata: Any) -> None:
    """Use what a plan uses of a `pyarrow.parquet.FileMetaData`."""
    metadata.schema.to_arrow_schema()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for at in range(group.num_columns):
            column = group.column(at)
            column.to_dict()
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max:
                _ = statistics.min_raw, statistics.max_raw


if __name__ == "__main__":
    main()
