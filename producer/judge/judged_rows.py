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
from nightshift.common.formats.values import to_list
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import Job
from nightshift.common.spec import RESERVED_COLUMNS
from nightshift.producer.results import part_files
from nightshift.producer.results.sample import distinct_names

PREFIX = "judged_"
"""Prefix of a name that the judge's own output uses, so that the column can be passed through."""

READ_BYTES = 256 * 2**20


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


def sampled_positions(total: int, count: int | None, seed: int) -> list[int] | None:
    """Ascending positions among `total` answered rows in dataset order; None is all of them."""
    if count is None or count >= total:
        return None
    return sorted(random.Random(seed).sample(range(total), count))


def write(
    ledger: Ledger,
    job: Job,
    target: str,
    chosen: Sequence[JudgedColumn],
    positions: Sequence[int] | None,
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
    positions: Sequence[int] | None,
) -> Iterator[pa.RecordBatch]:
    cache = ReadCache(READ_BYTES)
    before = 0
    for parts in part_files.roots(ledger, job):
        answered = sum(
            part["row_count"] - part["redo_count"] - part["rows_failed"] for part in parts
        )
        here = _between(positions, before, before + answered)
        before += answered
        if here is None or here:
            yield from _root_rows(job, parts, answered, here, chosen, schema, cache).to_batches()


def _between(positions: Sequence[int] | None, first: int, stop: int) -> list[int] | None:
    """The positions from `first` up to `stop`, counted from `first`; None is all of them."""
    if positions is None:
        return None
    found = positions[bisect_left(positions, first) : bisect_left(positions, stop)]
    return [position - first for position in found]


def _root_rows(
    job: Job,
    live: Sequence[Row],
    answered: int,
    here: list[int] | None,
    chosen: Sequence[JudgedColumn],
    schema: pa.Schema,
    cache: ReadCache,
) -> pa.Table:
    """The answered rows of one root batch, or those at positions `here`, with the judge's columns."""
    output = part_files.root_table(job, live)
    output = output.filter(pc.is_null(output.column("error")))
    if len(output) != answered:
        raise Permanent(
            f"{live[0]['part_name']} of job {job.id} holds {len(output):,} answers and the ledger "
            f"says {answered:,}: see `nightshift verify {job.id}`"
        )
    if here is not None:
        output = output.take(pa.array(here, pa.int64()))
    wanted = [each.source for each in chosen if not each.is_output]
    inputs = _inputs(job, live[0], output.column("row_index"), wanted, cache) if wanted else None
    arrays = []
    for each in chosen:
        if each.is_output or inputs is None:
            arrays.append(output.column(each.source))
        else:
            arrays.append(_fitted(inputs.column(each.source), each.field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _inputs(
    job: Job, part: Row, index: pa.ChunkedArray, wanted: list[str], cache: ReadCache
) -> pa.Table:
    """Reads the input of these rows again."""
    rows = RowRanges.from_indices(index.to_pylist())
    try:
        found = part_files.read_input(job, part, rows, wanted, cache)
    except SourceChanged as error:
        raise BadInput(
            f"the judge needs the input of job {job.id} again, and {part['uri']} is gone or "
            "another one now"
        ) from error
    if found.bad:
        first = next(iter(found.bad.values()))
        raise BadInput(f"the judge needs the input of job {job.id} again: {first.message}")
    return found.table


def _fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """The column as the planned type; nested values may have keys that the first rows had not."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException:
        return pa.array(to_list(column), kind)
