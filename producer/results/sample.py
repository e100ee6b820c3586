"""Some finished rows, input beside output; the same seed draws the same rows."""

import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_rows
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows, job_facts, live_parts
from nightshift.common.public_text import marked
from nightshift.common.spec import ANSWERED_BY
from nightshift.producer.closed_jobs import readable
from nightshift.producer.results import part_files

USAGE_COLUMNS = ("row_index", "finish_reason", "prompt_tokens", "output_tokens", ANSWERED_BY)

READERS = 4
MOST_ROWS = 1_000_000
"""Rows of an arranged job that runs among which are drawn: each is a range of its own."""

READ_BYTES = 256 * 2**20
"""Size of the cache of decoded input: neighbouring rows share a row group."""


@dataclass(slots=True)
class Sample:
    """Rows as dicts: `row_index`, the input columns, the output columns, `error`.

    `total` is how many rows they were drawn from; `problem` says why there is no input, if so. `by` is the column
    whose least values they have; empty for rows that were drawn.
    """

    total: int
    seed: int
    errors_only: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    problem: NightshiftError | None = None
    by: str = ""

    @property
    def note(self) -> str:
        """The problem for a person who may read every path; empty without one."""
        return "" if self.problem is None else str(self.problem)


def sample(ledger: Ledger, job: Job, count: int, seed: int, *, errors_only: bool = False) -> Sample:
    """Draws `count` of the finished rows, or of the failed ones; BadInput when there is none.

    The rows are drawn in dataset order, so of a finished job they depend on the seed alone, not on
    batches or workers.
    """
    with readable(ledger, job) as own:
        with own.transaction() as connection:
            if errors_only:
                finished = failed_rows.with_lines(connection, job.id)
            else:
                arranged = job_facts.is_arranged(connection, job.id)
                most = MOST_ROWS // job.spec.batch.rows + 1 if arranged else None
                finished = live_parts.finished_rows(connection, job.id, most)
            if not finished.ranges:
                kind = "failed" if errors_only else "finished"
                raise BadInput(f"job {job.id} has no {kind} rows{'' if errors_only else ' yet'}")
            total = len(finished)
            known = total if errors_only else live_parts.count_finished(connection, job.id)
            places = random.Random(seed).sample(range(total), min(count, total))
            indices = _rows_at(finished, places)
        drawn = Sample(known, seed, errors_only)
        _fill(own, job, indices, drawn)
    drawn.rows.sort(key=lambda row: int(row["row_index"]))
    return drawn


def chosen(ledger: Ledger, job: Job, indices: Sequence[int]) -> Sample:
    """These rows, in this order, as far as they have an answer; the note of the sample says if none has one."""
    drawn = Sample(len(indices), 0)
    if not indices:
        return drawn
    with readable(ledger, job) as own:
        _fill(own, job, indices, drawn)
    places = {index: place for place, index in enumerate(indices)}
    drawn.rows.sort(key=lambda row: places[row["row_index"]])
    if not drawn.rows:
        drawn.problem = BadInput(
            f"job {job.id} has no answer for row {indices[0]:,} yet, or has no row {indices[0]:,}"
        )
    return drawn


def _fill(ledger: Ledger, job: Job, indices: Sequence[int], drawn: Sample) -> None:
    """Reads these rows into a sample, each part and its input once."""
    with ledger.transaction() as connection:
        found = live_parts.parts_holding(connection, job.id, indices)
    cache, names = ReadCache(READ_BYTES), _input_names(job)
    groups = [list(group) for _, group in groupby(found, key=lambda row: row["id"])]
    with ThreadPoolExecutor(READERS) as readers:
        for rows, problem in readers.map(lambda group: _read(job, group, names, cache), groups):
            drawn.rows += rows
            drawn.problem = drawn.problem or problem
    drawn.inputs = list(names.values())
    own = {*USAGE_COLUMNS, *job.spec.passed_columns, "error"}
    drawn.outputs = [name for name in part_files.schema_of(job).names if name not in own]
    if any(row["error"] is not None for row in drawn.rows):
        drawn.outputs.append("error")


def _read(
    job: Job, group: Sequence[Row], names: Mapping[str, str], cache: ReadCache
) -> tuple[list[dict[str, Any]], NightshiftError | None]:
    """The drawn rows of one part with their input, and why the input cannot be read, if so."""
    wanted = RowRanges.from_indices(row["row_index"] for row in group)
    table = part_files.read(job, group[0]["part_name"])
    chosen = table.filter(pc.is_in(table.column("row_index"), pa.array(list(wanted), pa.int64())))
    try:
        rows = part_files.read_input(job, group[0], wanted, list(names), cache)
    except NightshiftError as error:
        return to_rows(chosen), BadInput(f"the input cannot be shown: {marked(error)}")
    table = rows.table.select(list(names)).rename_columns(list(names.values()))
    inputs = dict(zip(rows.row_index, to_rows(table), strict=True))
    return [{**inputs.get(row["row_index"], {}), **row} for row in to_rows(chosen)], None


def _input_names(job: Job) -> dict[str, str]:
    """The input columns that the job reads, the id first, each with its name beside the output's:
    an answer may have the name of a column that is not passed through.
    """
    read = job.spec.read_columns or list(
        dict.fromkeys([*job.spec.passed_columns, *part_files.input_schema(job).names])
    )
    return distinct_names(read, {*part_files.schema_of(job).names} - {*job.spec.passed_columns})


def distinct_names(inputs: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """A distinct name for each input column: `input_` comes before a name that is taken."""
    names: dict[str, str] = {}
    used = {*taken}
    for name in inputs:
        free = name
        while free in used or (free != name and free in inputs):
            free = f"input_{free}"
        names[name] = free
        used.add(free)
    return names


def _rows_at(rows: RowRanges, places: Iterable[int]) -> list[int]:
    """The row indices at these places among the rows, counted from 0."""
    before = list(accumulate((stop - start for start, stop in rows.ranges), initial=0))
    found = []
    for place in places:
        piece = bisect_right(before, place) - 1
        found.append(rows.ranges[piece][0] + place - before[piece])
    return found
