"""The file that a judge reads: the answered rows of a job, each with its input, as Parquet."""

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, Permanent, SourceChanged
from nightshift.common.formats import part_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.spec import RESERVED_COLUMNS
from nightshift.common.text import counted
from nightshift.producer.results import part_files
from nightshift.producer.results.sample import distinct_names

PREFIX = "judged_"
"""Prefix of a name that the judge's own output uses, so that the column can be passed through."""

READ_BYTES = 256 * 2**20


METADATA_KEY = "judged"
"""Key in the metadata of that file; the value is a JudgedSample."""


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """Which rows of which job are judged: `rows` of its `population` answered ones.

    Another number of `retries` means that some of its answers may be new. Stands as JSON in the
    metadata of the file with the rows.
    """

    job: int
    retries: int
    population: int
    rows: int
    seed: int


@dataclass(frozen=True, slots=True)
class JudgedColumn:
    """A column of the judge's input, and its `source`: a column of the job's output or input."""

    field: pa.Field
    source: str
    is_output: bool

    @property
    def is_copy(self) -> bool:
        """Whether it is a renamed column of the output, which the judge gets only if its spec asks."""
        return self.is_output and self.field.name != self.source


def columns(job: Job) -> list[JudgedColumn]:
    """Every column that a judge can name, the `row_index` of the judged row first.

    Columns of the output keep their names; of the columns that every output has there is also
    `judged_NAME`. A column of the input whose name is taken is `input_NAME`.
    """
    output = part_files.schema_of(job)
    answers = [field for field in output if field.name not in ("row_index", "error")]
    found = [JudgedColumn(field, field.name, True) for field in answers]
    reserved = [field for field in output if field.name in RESERVED_COLUMNS - {"error"}]
    for field in reserved:
        name = f"{PREFIX}{field.name}"
        while name in {each.field.name for each in found}:
            name = f"{PREFIX}{name}"
        found.append(JudgedColumn(field.with_name(name), field.name, True))
    inputs = part_files.input_schema(job)
    unread = [name for name in inputs.names if name not in job.spec.passed_columns]
    for name, free in distinct_names(unread, {each.field.name for each in found}).items():
        found.append(JudgedColumn(pa.field(free, inputs.field(name).type), name, False))
    return sorted(found, key=lambda each: each.source != "row_index")


def row_index_column(columns: Sequence[JudgedColumn]) -> str:
    """The name of the column that holds the `row_index` of the judged row."""
    return str(columns[0].field.name)


def sampled_positions(total: int, count: int | None, seed: int) -> Sequence[int]:
    """Ascending positions among `total` answered rows in dataset order: `count` of them, or all."""
    if count is None or count >= total:
        return range(total)
    return sorted(random.Random(seed).sample(range(total), count))


def write(
    ledger: Ledger,
    job: Job,
    target: str,
    chosen: Sequence[JudgedColumn],
    positions: Sequence[int],
    metadata: dict[str, str],
) -> int:
    """Writes the rows to the file `target`, whole or not at all; returns how many.

    Holds one root batch at a time. Raises BadInput when the input cannot be read again, Permanent
    when parts and ledger disagree.
    """
    schema = pa.schema([each.field for each in chosen])
    rows = part_files.read_ahead(_rows(ledger, job, chosen, schema, positions))
    return part_rows.write_batches(target, rows, schema, "parquet", metadata)


def _rows(
    ledger: Ledger,
    job: Job,
    chosen: Sequence[JudgedColumn],
    schema: pa.Schema,
    positions: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    cache = ReadCache(READ_BYTES)
    wanted = [each.source for each in chosen if not each.is_output]
    stop = 0
    for parts in part_files.roots(ledger, job):
        answered = sum(
            part["row_count"] - part["redo_count"] - part["rows_failed"] for part in parts
        )
        first, stop = stop, stop + answered
        here = positions[bisect_left(positions, first) : bisect_left(positions, stop)]
        if answered and not here:
            continue
        output = _answers(job, parts, answered)
        if not here:
            continue  # every row of the batch failed
        if len(here) < answered:
            output = output.take(pa.array([position - first for position in here], pa.int64()))
        index = output.column("row_index")
        inputs = _inputs(job, parts[0], index, wanted, cache) if wanted else output
        arrays = [
            output.column(each.source)
            if each.is_output
            else inputs.column(each.source).cast(each.field.type)
            for each in chosen
        ]
        yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()


def _answers(job: Job, parts: Sequence[Row], answered: int) -> pa.Table:
    """The answered rows of one root batch; Permanent where they are not as many as `answered`."""
    output = part_files.root_table(job, parts)
    output = output.filter(pc.is_null(output.column("error")))
    if len(output) != answered:
        raise Permanent(
            f"{parts[0]['part_name']} of job {job.id} holds {counted(len(output), 'answer')} and the ledger "
            f"says {answered:,}: see `nightshift verify {job.id}`"
        )
    return output


def _inputs(
    job: Job, part: Row, index: pa.ChunkedArray, wanted: list[str], cache: ReadCache
) -> pa.Table:
    """Reads the input of these rows again."""
    rows = RowRanges.from_indices(index.to_pylist())
    try:
        found = part_files.read_input(job, part, rows, wanted, cache, fixed=wanted)
    except SourceChanged as error:
        raise BadInput(
            f"the judge needs the input of job {job.id} again, and {part['uri']} is gone or "
            "another one now"
        ) from error
    if found.bad:
        first = next(iter(found.bad.values()))
        raise BadInput(f"the judge needs the input of job {job.id} again: {first.message}")
    return found.table
