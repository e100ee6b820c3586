"""Rows on their way into a copy: the first of them, or all in the order of their id."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from nightshift.common.formats import reading
from nightshift.producer.external_sort.boxes import in_order
from nightshift.producer.external_sort.spill import spill_folder
from nightshift.producer.submit.arrange import copy as sorting

PLACE = "\0place"
"""Column of the rows on their way: the place of the row in the copy."""


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, held to what a plan may read (`reading`)."""
    bounds = reading.current()
    for batch in batches:
        bounds.check()
        bounds.add_bytes(batch.nbytes)
        yield batch


def first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first rows, or all; no more than a plan may read."""
    left = reading.current().within(limit)
    for batch in batches:
        taken = batch if left is None else batch.slice(0, left)
        if taken.num_rows:
            yield taken
        if left is not None and (left := left - taken.num_rows) <= 0:
            return


def ordered(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, id_column: str | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a scan without an order, by their id and then by all else that they hold: equal tables give
    equal copies. In bounded memory: the rows wait in the folder of temporary files. Raises StorageUnavailable
    where that is full.
    """
    assert id_column is not None
    with spill_folder() as folder, sorting.one_at_a_time():
        file = str(folder / "rows")
        rows_total = 0
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows_total += batch.num_rows
        if not rows_total:
            return
        by = [id_column, *(name for name in schema.names if name != id_column)]
        places = sorting.places(_keys(file, by), rows_total, rows_total)
        for batch in in_order(_placed(file, places), PLACE, rows_total):
            yield batch.select(schema.names)


def _spilled(file: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(file) as source, pa.ipc.open_stream(source) as reader:
        yield from reader


def _keys(file: str, by: list[str]) -> Iterator[pa.RecordBatch]:
    offset = 0
    for batch in _spilled(file):
        columns = [
            sorting.comparable(
                pa.chunked_array([batch.column(name)]), batch.schema.field(name).type
            )
            for name in by
        ]
        numbers = pa.array(range(offset, offset + batch.num_rows), pa.int64())
        offset += batch.num_rows
        table = pa.table(
            [numbers, *columns], names=["offset", *(f"k{at}" for at in range(len(by)))]
        )
        yield from table.to_batches()


def _placed(file: str, places: sorting.Places) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in _spilled(file):
        place = places[first : first + batch.num_rows].astype("int64")
        first += batch.num_rows
        yield batch.append_column(PLACE, pa.array(place))
