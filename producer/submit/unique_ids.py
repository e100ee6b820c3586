"""`input.unique_id`: ids are read at submit, and the input is refused if an id stands in two rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from nightshift.common.descriptor import Descriptor, RowRanges
from nightshift.common.errors import BadInput, SourceChanged, StorageUnavailable
from nightshift.common.formats.values import to_list
from nightshift.common.public_text import marked
from nightshift.common.spec import JobSpec, RequestsTask
from nightshift.common.text import counted, kept_message, one_line, plural
from nightshift.producer.external_sort.repeats import RepeatCount, Repeats
from nightshift.producer.external_sort.spill import spill_folder
from nightshift.producer.submit.planning.plan_reader import PlanReader
from nightshift.producer.submit.planning.planner import Plan

READ_ROWS = 65_536
READ_BYTES = 16 * 2**20
"""Rows, and bytes of lines, that are read at once."""

CACHE_BYTES = 128 * 2**20

Ids = tuple[list[int], pa.ChunkedArray]
"""Row numbers, ascending, and the id of each."""


def check(spec: JobSpec, plan: Plan) -> None:
    """BadInput, with an id and its rows, where `input.unique_id` is set and an id stands in two rows.

    Reads the ids of every row, in bounded memory. Raises StorageUnavailable where they cannot be read now.
    """
    if not spec.input.unique_id or isinstance(spec.task, RequestsTask):
        return
    with spill_folder() as folder:
        count = RepeatCount(folder)
        for rows, ids in ids_of(spec, plan):
            count.add(rows, ids)
        refuse(spec, plan, count.result())


def refuse(spec: JobSpec, plan: Plan, found: Repeats) -> None:
    """BadInput where an id was found in two rows; the later of them is a row of the plan."""
    if found.pair is None:
        return
    first, second = found.pair
    column = spec.input.id
    assert column is not None
    others = f", and {counted(found.repeated, 'row')} {plural(found.repeated, 'repeats', 'repeat')} the id of an earlier one"
    raise BadInput(
        f"input.unique_id: the {column} {_shown(spec, plan, second, column)} stands in two rows of the input, "
        f"{first:,} and {second:,}{others}: give each row an id of its own, or leave unique_id out"
    )


def ids_of(spec: JobSpec, plan: Plan) -> Iterator[Ids]:
    """The ids of all rows of a plan."""
    assert spec.input.id is not None
    reader = PlanReader(spec, plan, CACHE_BYTES)
    for piece in _pieces(plan.batches()):
        yield _read(reader, piece, spec.input.id)


def _read(reader: PlanReader, piece: Descriptor, column: str) -> Ids:
    try:
        rows = reader.read(piece, [])
    except SourceChanged as error:
        raise StorageUnavailable(
            f"{marked(error)}, while its ids were read: submit again"
        ) from error
    return rows.numbers, rows.whole().column(column)


def _shown(spec: JobSpec, plan: Plan, row: int, column: str) -> str:
    for piece in _pieces(plan.batches()):
        if row in piece.rows:
            rows, ids = _read(PlanReader(spec, plan, 0), piece, column)
            return one_line(kept_message(repr(to_list(ids)[rows.index(row)])))
    return "of one row"


def _pieces(batches: Iterable[Descriptor]) -> Iterator[Descriptor]:
    """The same rows in pieces that are good to read: neighbours of one file together."""
    held: Descriptor | None = None
    for batch in batches:
        both = None if held is None else _together(held, batch)
        if both is None and held is not None:
            yield held
        held = both or batch
    if held is not None:
        yield held


def _together(one: Descriptor, other: Descriptor) -> Descriptor | None:
    """Both as one piece; None where they are of two files or too many rows."""
    if one.source != other.source or len(one.rows) + len(other.rows) > READ_ROWS:
        return None
    rows, at, then = RowRanges.of(*one.rows.ranges, *other.rows.ranges), one.locator, other.locator
    if at is None or then is None:
        return Descriptor(one.source, rows)
    size = then.byte_offset + then.byte_length - at.byte_offset
    if size > READ_BYTES:
        return None
    return Descriptor(one.source, rows, replace(at, byte_length=size))
