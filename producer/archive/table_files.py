"""Rows of the ledger's tables as Parquet files: written page by page, proved, read again."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from nightshift.common import storage
from nightshift.common.errors import ArchiveTaken, BadInput
from nightshift.common.formats import part_names
from nightshift.common.formats.known import FORMATS
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import archives
from nightshift.common.ledger.jobs.archives import Archive, ArchiveFile
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.producer.submit import owned_files

T = TypeVar("T")

PAGE_ROWS = 5_000
"""Rows that one transaction reads or deletes, about, so that it stays short."""

ARROW_TYPES = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "boolean": pa.bool_(),
    "double precision": pa.float64(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}
"""Types of Arrow by the name of a type in Postgres; a value of any other type is kept as its text."""

Rest = Callable[[float], object]
"""Called after each page with the seconds that the page took, so that the caller may pause."""


def pages(
    ledger: Ledger,
    archive: Archive,
    table: str,
    act: Callable[[Connection, str, int, int, int], T],
    rest: Rest,
) -> Iterator[T]:
    """What `act` makes of each page of a table, a transaction a page, in the order of the dataset.

    Raises ArchiveTaken when another process has moved on with the job.
    """
    first: int | None = 0
    while first is not None:
        began = time.monotonic()
        with ledger.transaction() as connection:
            hold(connection, archive)
            stop = archives.stop_of_page(connection, table, archive.job_id, first, PAGE_ROWS)
            done = None if stop is None else act(connection, table, archive.job_id, first, stop)
        if done is not None:
            yield done
            rest(time.monotonic() - began)
        first = stop


def hold(connection: Connection, archive: Archive) -> None:
    """Holds an archive to the end of the transaction; raises ArchiveTaken."""
    if not archives.hold(connection, archive):
        raise taken(archive)


def taken(archive: Archive) -> ArchiveTaken:
    """The error of a process whose archive another process moves now."""
    return ArchiveTaken(
        f"another process moves the batches of job {archive.job_id} now: try again later"
    )


def write(ledger: Ledger, job: Job, archive: Archive, table: str, rest: Rest) -> ArchiveFile:
    """Writes the rows of a job in one table to a file of their own."""
    with ledger.transaction() as connection:
        kinds = archives.columns(connection, table)
    schema = pa.schema([(name, ARROW_TYPES.get(kind, pa.string())) for name, kind in kinds.items()])
    name = f"{table}-{archive.generation}{part_names.ARCHIVE_SUFFIX}"
    metadata = {"job": str(job.id), "table": table}
    rows = 0

    def batches() -> Iterator[pa.RecordBatch]:
        for page in pages(ledger, archive, table, archives.rows_between, rest):
            # Batches that never ran have no attempts, and nothing is no CSV.
            if page:
                yield from _parsed(page, schema).to_batches()

    def fill(sink: BinaryIO) -> None:
        nonlocal rows
        rows = FORMATS["parquet"].write(batches(), schema, sink, metadata)

    written = owned_files.write(ledger, job, part_names.archived(job.output_uri, name), fill)
    return ArchiveFile(table, name, rows, written.bytes, written.checksum)


def prove(job: Job, file: ArchiveFile) -> None:
    """Reads a file whole; BadInput when it is gone, or is not the file that was written."""
    uri = part_names.archived(job.output_uri, file.name)
    try:
        same = (
            storage.stat(uri, links=False).size == file.bytes
            and storage.checksum(uri) == file.sha256
        )
        rows = sum(batch.num_rows for batch in read(job, file)) if same else None
    except FileNotFoundError as error:
        raise BadInput(
            f"{private(uri)} is gone: the batches of job {job.id} were archived there"
        ) from error
    if rows != file.rows:
        raise BadInput(
            f"{private(uri)} is not the file that was written: the batches of job {job.id} were archived there"
        )


def read(job: Job, file: ArchiveFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the order of the dataset, a page at a time."""
    uri = part_names.archived(job.output_uri, file.name)
    with storage.open_input(uri, links=False) as handle:
        yield from pq.ParquetFile(handle).iter_batches(batch_size=PAGE_ROWS)


def columns(job: Job, file: ArchiveFile) -> list[str]:
    """Return the names of the columns of a file."""
    uri = part_names.archived(job.output_uri, file.name)
    with storage.open_input(uri, links=False) as handle:
        names: list[str] = pq.read_schema(handle).names
    return names


def delete(ledger: Ledger, job: Job, names: Iterable[str]) -> None:
    """Removes files of the archive, as far as the store lets them go, and the folder if it is empty."""
    owned_files.delete(ledger, job, [part_names.archived(job.output_uri, name) for name in names])
    storage.remove_directory(part_names.archived(job.output_uri, ""))


def sweep(ledger: Ledger, job: Job, files: Sequence[ArchiveFile]) -> None:
    """Removes every other file from the folder of the archive: the ledger names these alone."""
    found = storage.list_names(part_names.archived(job.output_uri, ""))
    delete(ledger, job, set(found) - {file.name for file in files})


def _parsed(text: bytes, schema: pa.Schema) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(text),
        # One block: a line may be longer than a block otherwise.
        csv.ReadOptions(column_names=schema.names, block_size=len(text)),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
