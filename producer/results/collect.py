"""Collect: the parts of a job as one file, in the order of the dataset, in bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat
from nightshift.common.errors import BadInput, Permanent
from nightshift.common.formats import part_rows
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import generations, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts
from nightshift.common.spec import RequestsTask
from nightshift.common.text import counted, plural
from nightshift.producer.external_sort.boxes import in_order
from nightshift.producer.results import part_files, target_file, vectors
from nightshift.producer.results.with_input import with_input

CSV = ".csv"

FORMATS: dict[str, InputFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    CSV: "csv",
    vectors.SUFFIX: "parquet",
}
"""What a file of each suffix holds. Beside vectors lies a Parquet file with their ids."""

Part = Mapping[Any, Any]
"""A live part, as `live_parts` gives it."""

RowsOf = Callable[[Sequence[Any]], Iterable[pa.RecordBatch]]


def collect(
    ledger: Ledger,
    job: Job,
    to: str,
    *,
    partial: bool = False,
    force: bool = False,
    inputs: Sequence[str] = (),
    remark: Callable[[str], None] | None = None,
) -> int:
    """Writes every row of a finished job to the file `to`; returns the number of rows.

    A `.npy` file holds the vectors alone, see `results.vectors`, of the rows that have one. `inputs`
    are columns of the input that stand beside the output, see `results.with_input`; `remark` is told of
    values of these that are null because they do not fit their column.
    The file appears whole or not at all. With `partial` the rows of a job that is not finished are
    those that it has; with `force` a file that exists is replaced. Memory holds one root batch at a
    time; the rows of an arranged job are sorted in files meanwhile. Raises BadInput for what cannot be collected, Permanent when parts and ledger disagree.
    """
    target = storage.resolve(to)
    suffix = target_file.suffix_of(target, FORMATS)
    is_npy = suffix == vectors.SUFFIX
    if is_npy and inputs:
        raise BadInput(f"a {suffix} file holds vectors alone: leave --with-input out")
    targets = [target, vectors.ids_uri(target)] if is_npy else [target]
    beside = with_input(job, inputs) if inputs else None
    job, rows = rows_for(
        ledger,
        job,
        targets,
        partial=partial,
        force=force,
        rows_of=None if beside is None else beside.rows_of,
    )
    schema = part_files.schema_of(job) if beside is None else beside.schema
    ahead = part_files.read_ahead(rows)
    if is_npy:
        vectors.check(schema, job.id)
        return vectors.write(target, ahead, schema, job.spec.input.id)
    kind = kind_of(job, FORMATS[suffix])
    written = part_rows.write_batches(target, ahead, schema, kind, {})
    if remark is not None and beside is not None and beside.misfits:
        first = beside.misfits[0].message
        remark(
            f"{counted(len(beside.misfits), 'value')} of the input {plural(len(beside.misfits), 'is', 'are')} null, the first since {first}"
        )
    return written


def rows_for(
    ledger: Ledger,
    job: Job,
    targets: Sequence[str],
    *,
    partial: bool,
    force: bool,
    rows_of: RowsOf | None = None,
) -> tuple[Job, Iterator[pa.RecordBatch]]:
    """The job as it is now, and every row of it in order, for the files `targets`; `rows_of` makes the
    rows of a root batch of its parts.

    Raises BadInput when the job cannot be collected or a file cannot be written.
    """
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
    if not partial and (why := why_partial(job, progress)):
        raise BadInput(f"{why}: --partial takes what is there")
    for target in targets:
        target_file.check(job, target, force=force)
    expected = None if partial else progress["rows_total"]
    return job, _in_order(ledger, job, expected, rows_of or (lambda parts: own_rows(job, parts)))


def kind_of(job: Job, kind: InputFormat) -> InputFormat:
    """How rows of a job are written into a file of this format."""
    is_of_requests = isinstance(job.spec.task, RequestsTask)
    return "openai" if kind == "jsonl" and is_of_requests else kind


def why_partial(job: Job, progress: Row) -> str:
    """Why a job, by its row of job_progress, does not have all of its rows yet; empty where it has."""
    left = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
    if not left and job.closed_at is not None:
        return ""
    why = (
        f"{counted(left, 'row')} {plural(left, 'has', 'have')} no output"
        if left
        else "its files are being finished"
    )
    return f"job {job.id} is {job.state} and {why}"


def own_rows(job: Job, parts: Sequence[Part]) -> Iterable[pa.RecordBatch]:
    """The rows of a root batch as they stand in its parts; those of a root that was split are merged."""
    if len(parts) == 1:
        return part_files.kept_rows(job, parts[0])
    batches: list[pa.RecordBatch] = part_files.root_table(job, parts).to_batches()
    return batches


def _in_order(
    ledger: Ledger, job: Job, expected: int | None, rows_of: RowsOf
) -> Iterator[pa.RecordBatch]:
    """Every row, ascending; Permanent when there are not as many as the ledger says.

    The error comes before the end of the rows, so that no file appears.
    """
    rows = as_they_lie(job, part_files.roots(ledger, job), expected, rows_of)
    with ledger.transaction() as connection:
        arranged = job_facts.is_arranged(connection, job.id)
        stop = generations.end(connection, job.id).row
    yield from in_order(rows, "row_index", stop) if arranged else rows


def as_they_lie(
    job: Job, roots: Iterable[Sequence[Part]], expected: int | None, rows_of: RowsOf
) -> Iterator[pa.RecordBatch]:
    """Every row of these parts, root batch by root batch; Permanent where there are not as many as the parts
    have, or as are `expected` of all.
    """
    taken = 0
    for parts in roots:
        promised = taken + sum(part["row_count"] - part["redo_count"] for part in parts)
        for batch in rows_of(parts):
            taken += batch.num_rows
            yield batch
        _check_count(job, parts[0]["part_name"], taken, promised)
    if expected is not None:
        _check_count(job, "the output", taken, expected)


def _check_count(job: Job, what: str, taken: int, promised: int) -> None:
    if taken != promised:
        raise Permanent(
            f"after {what} of job {job.id} there are {counted(taken, 'row')} and the ledger says "
            f"{promised:,}: see `nightshift verify {job.id}`"
        )
