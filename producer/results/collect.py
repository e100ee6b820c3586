"""Collect: the parts of a job as one file, in the order of the dataset, in bounded memory."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from nightshift.common.errors import BadInput, Permanent
from nightshift.common.formats import registry
from nightshift.common.ledger import Ledger, Row, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.storage import storage
from nightshift.producer.results import part_files, vectors
from nightshift.producer.results.read_ahead import read_ahead

SUFFIXES: dict[str, registry.OutputFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}

BATCHES_AHEAD = 4
"""Record batches that are read while earlier ones are written."""


def collect(
    ledger: Ledger, job: Job, to: str, *, partial: bool = False, force: bool = False
) -> int:
    """Writes every row of a finished job to the file `to`; returns how many.

    A `.npy` file holds the vectors alone, see `producer.vectors`, of the rows that have one.
    The file appears whole or not at all. With `partial` a job that is not finished gives what it
    has; with `force` a file that is there is replaced. Holds one root batch at a time. Raises
    BadInput for what cannot be collected, Permanent when parts and ledger disagree.
    """
    target = storage.resolve(to)
    is_npy = target.lower().endswith(vectors.SUFFIX)
    form = "parquet" if is_npy else _form(target)
    targets = [target, vectors.ids_uri(target)] if is_npy else [target]
    job, rows = rows_for(ledger, job, targets, partial=partial, force=force)
    schema = part_files.schema_of(job)
    ahead = read_ahead(rows, BATCHES_AHEAD)
    if is_npy:
        vectors.check(schema, job.id)
        return vectors.write(target, ahead, schema, job.spec.input.id)
    return registry.write_batches(target, ahead, schema, form, {}, replace=True).rows


def rows_for(
    ledger: Ledger, job: Job, targets: Sequence[str], *, partial: bool, force: bool
) -> tuple[Job, Iterator[pa.RecordBatch]]:
    """The job as it is now, and every row of it in order, to be written to the files `targets`.

    BadInput where the job or the files are not fit for it.
    """
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
    left = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
    for target in targets:
        _refuse(job, target, left, partial=partial, force=force)
    return job, _in_order(ledger, job, None if partial else progress["rows_total"])


def _form(target: str) -> registry.OutputFormat:
    for suffix, form in SUFFIXES.items():
        if target.lower().endswith(suffix):
            return form
    known = ", ".join([*SUFFIXES, vectors.SUFFIX])
    raise BadInput(f"{target} ends in none of {known}: the suffix says the format")


def _refuse(job: Job, target: str, left: int, *, partial: bool, force: bool) -> None:
    if not partial and (left or job.closed_at is None):
        why = f"{left:,} rows have no output" if left else "its files are being finished"
        raise BadInput(f"job {job.id} is {job.state} and {why}: --partial takes what is there")
    part_files.refuse_inside(job.output_uri, target)
    if storage.exists(target) and not force:
        raise BadInput(f"{target} exists: --force replaces it")


def _in_order(ledger: Ledger, job: Job, expected: int | None) -> Iterator[pa.RecordBatch]:
    """Every row, ascending; Permanent when they are not as many as the ledger says.

    Raising here keeps the file from appearing.
    """
    taken = 0
    for page in part_files.pages(ledger, job):
        for _, group in groupby(page, key=lambda part: part["seq"]):
            live = list(group)
            promised = taken + sum(part["row_count"] - part["redo_count"] for part in live)
            for batch in _root(job, live):
                taken += batch.num_rows
                yield batch
            _check_count(job, live[0]["part_name"], taken, promised)
    if expected is not None:
        _check_count(job, "the output", taken, expected)


def _check_count(job: Job, what: str, taken: int, promised: int) -> None:
    if taken != promised:
        raise Permanent(
            f"after {what} of job {job.id} there are {taken:,} rows and the ledger says "
            f"{promised:,}: see `nightshift verify {job.id}`"
        )


def _root(job: Job, live: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """The rows of one root batch; the parts of its children are merged."""
    if len(live) == 1:
        return part_files.standing(job, live[0])
    schema = part_files.schema_of(job)
    rows = (batch for part in live for batch in part_files.standing(job, part))
    return iter(pa.Table.from_batches(rows, schema).sort_by("row_index").to_batches())
