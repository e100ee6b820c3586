"""Some finished rows, input beside output, drawn so that the same seed shows the same rows."""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow.compute as pc

from common import dataset, formats
from common.descriptor import RowRanges
from common.errors import BadInput, NightshiftError
from common.ledger import Ledger, Row, audit, batches
from common.ledger.jobs import Job
from common.values import to_rows
from producer import part_files

QUIET_COLUMNS = ("row_index", "finish_reason", "prompt_tokens", "output_tokens")


@dataclass(slots=True)
class Sample:
    """Rows as dicts: `row_index`, the input columns, the output columns, `error`."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    note: str = ""


def sample(ledger: Ledger, job: Job, count: int, seed: int) -> Sample:
    """Draws `count` of the rows that are finished; BadInput when none is.

    The draw is over the finished rows in dataset order, so on a finished job it depends on the
    seed alone, not on batches or workers.
    """
    with ledger.transaction() as connection:
        finished = audit.finished_rows(connection, job.id)
        if not finished.ranges:
            raise BadInput(f"job {job.id} has no finished rows yet")
        total = len(finished)
        places = random.Random(seed).sample(range(total), min(count, total))
        found = audit.parts_holding(connection, job.id, [_at(finished, at) for at in places])
    drawn = Sample()
    for _, group in groupby(found, key=lambda row: row["id"]):
        _add(job, list(group), drawn)
    drawn.rows.sort(key=lambda row: int(row["row_index"]))
    names = part_files.schema_of(job).names
    drawn.inputs = _inputs(job)
    drawn.outputs = [name for name in names if name not in {*QUIET_COLUMNS, *drawn.inputs, "error"}]
    if any(row["error"] is not None for row in drawn.rows):
        drawn.outputs.append("error")
    return drawn


def _add(job: Job, group: Sequence[Row], drawn: Sample) -> None:
    """The drawn rows of one part, with their input where that can still be read."""
    wanted = RowRanges.from_indices(row["row_index"] for row in group)
    table = part_files.read(job, group[0]["part_name"])
    chosen = table.filter(pc.is_in(table.column("row_index"), part_files.index_array(wanted)))
    inputs = _read_inputs(job, group[0], wanted, drawn)
    drawn.rows += [{**inputs.get(row["row_index"], {}), **row} for row in to_rows(chosen)]


def _read_inputs(job: Job, row: Row, wanted: RowRanges, drawn: Sample) -> dict[int, dict[str, Any]]:
    place = dataclasses.replace(batches.descriptor(row), rows=wanted)
    try:
        rows = dataset.read_rows(
            job.spec,
            place,
            _inputs(job),
            formats.ReadCache(0),
            part_files.input_schema(job),
        )
    except NightshiftError as error:
        drawn.note = f"the input cannot be shown: {error}"
        return {}
    return dict(zip(rows.row_index, to_rows(rows.table), strict=True))


def _inputs(job: Job) -> list[str]:
    """Input columns that the job reads, the id first."""
    return job.spec.read_columns or list(
        dict.fromkeys([*job.spec.passed_columns, *part_files.input_schema(job).names])
    )


def _at(rows: RowRanges, place: int) -> int:
    """The row index at a place among rows, counted from 0."""
    for start, stop in rows.ranges:
        if place < stop - start:
            return start + place
        place -= stop - start
    raise IndexError(place)
