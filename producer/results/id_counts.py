"""How many ids of an output differ, counted when a job ends: in bounded time, or not at all.

`nightshift verify` counts the ids of every job.
"""

import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common import storage
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.own_folder import own_folder
from nightshift.common.spec import RequestsTask
from nightshift.common.states import JobState
from nightshift.producer.external_sort.repeats import RepeatCount
from nightshift.producer.results import part_files

MOST_ROWS = 900_000
"""The digests of so many ids fit into 22 MB of memory."""

MOST_SECONDS = 5.0
"""Longest time that a job that ends waits for the count."""


@dataclass(frozen=True, slots=True)
class IdCount:
    """The ids of `rows` rows that have one: how many are `different` (None where they were not counted), a
    repeated id as text (`example`), and two rows that have it (`pair`).
    """

    rows: int
    different: int | None = None
    example: str | None = None
    pair: tuple[int, int] | None = None


def count(ledger: Ledger, job: Job, most_seconds: float = MOST_SECONDS) -> IdCount | None:
    """Counts the ids in the parts of a job that ends. None for a job without ids, for one whose ids were
    read at submit, and for a cancelled one. Parts in an object store are not counted: a finish asks for no
    part there, where each request costs money.
    """
    spec_input = job.spec.input
    read_before = spec_input.unique_id or isinstance(job.spec.task, RequestsTask)
    if spec_input.id is None or read_before or job.state is JobState.CANCELLED:
        return None
    not_counted = uncounted(ledger, job)
    if not_counted.rows > MOST_ROWS or not storage.is_local(job.output_uri):
        return not_counted
    until = time.monotonic() + most_seconds
    with own_folder("nightshift-ids-") as folder:
        counted = RepeatCount(folder)
        for page in part_files.pages(ledger, job):
            for part in page:
                if time.monotonic() >= until:
                    return not_counted
                table = _ids(job, part["part_name"], spec_input.id)
                counted.add(table.column("row_index").to_pylist(), table.column(spec_input.id))
        found = counted.result()
    example = None if found.pair is None else part_files.id_of(ledger, job, found.pair[0])
    return IdCount(found.rows, found.different, example, found.pair)


def uncounted(ledger: Ledger, job: Job) -> IdCount:
    """The record of ids that were not counted."""
    with ledger.transaction() as connection:
        return IdCount(int(jobs.progress(connection, job.id)["rows_total"]))


def _ids(job: Job, name: str, column: str) -> pa.Table:
    """Row numbers and ids of a part, without its other columns where the format allows."""
    uri = part_files.place(job, name)
    if job.spec.output.format == "jsonl":
        return part_files.read(job, name, uri)
    with storage.open_input(uri, links=False) as file:
        return pq.ParquetFile(file).read(columns=["row_index", column])
