"""Collect: the parts of a job as one file, in the order of the dataset, in bounded memory."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from common import formats, storage
from common.errors import BadInput, Permanent
from common.ledger import Ledger, Row, batches, jobs
from common.ledger.jobs import Job
from producer import part_files

SUFFIXES: dict[str, formats.OutputFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


def collect(
    ledger: Ledger, job: Job, to: str, *, partial: bool = False, force: bool = False
) -> int:
    """Writes every row of a finished job to the file `to`; returns how many.

    The file appears whole or not at all. With `partial` a job that is not finished gives what it
    has; with `force` a file that is there is replaced. Holds one root batch at a time. Raises
    BadInput for what cannot be collected, Permanent when parts and ledger disagree.
    """
    target = storage.resolve(to)
    form = _form(target)
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
        live = batches.parts(connection, job.id)
    left = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
    _refuse(job, target, left, partial=partial, force=force)
    facts = formats.write_batches(
        target, _in_order(job, live), part_files.schema_of(job), form, {}, replace=True
    )
    return facts.rows


def _form(target: str) -> formats.OutputFormat:
    for suffix, form in SUFFIXES.items():
        if target.lower().endswith(suffix):
            return form
    raise BadInput(f"{target} ends in none of {', '.join(SUFFIXES)}: the suffix says the format")


def _refuse(job: Job, target: str, left: int, *, partial: bool, force: bool) -> None:
    if not partial and (left or job.closed_at is None):
        why = f"{left:,} rows have no output" if left else "its files are being finished"
        raise BadInput(f"job {job.id} is {job.state} and {why}: --partial takes what is there")
    if target.startswith(f"{job.output_uri.rstrip('/')}/"):
        raise BadInput(
            f"{target} lies inside the output directory of job {job.id}, where it would be read "
            "as one more part: name another place"
        )
    if storage.exists(target) and not force:
        raise BadInput(f"{target} exists: --force replaces it")


def _in_order(job: Job, live: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """Every row, ascending; Permanent at the end when they are not as many as the ledger says.

    Raising here keeps the file from appearing.
    """
    rows = 0
    for _, group in groupby(live, key=lambda part: part["seq"]):
        for batch in _root(job, [part["part_name"] for part in group]):
            rows += batch.num_rows
            yield batch
    expected = sum(part["row_count"] for part in live)
    if rows != expected:
        raise Permanent(
            f"the parts of job {job.id} hold {rows:,} rows and the ledger says {expected:,}: "
            f"see `nightshift verify {job.id}`"
        )


def _root(job: Job, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one root batch; the parts of its children are merged."""
    if len(names) == 1:
        return part_files.stream(job, names[0])
    merged = pa.concat_tables([part_files.read(job, name) for name in names]).sort_by("row_index")
    return iter(merged.to_batches())
