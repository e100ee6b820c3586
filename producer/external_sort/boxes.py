"""Rows in the order of a number that each row has: sorted on disk, in bounded memory.

The numbers are those from 0 on, each at most once, so that rows go into boxes of neighbouring numbers,
and each box is sorted by itself. Boxes are Arrow files, which keep every type.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from nightshift.common.errors import Permanent
from nightshift.producer.external_sort.spill import spill_folder

BOX_BYTES = 64 * 2**20
"""Bytes of rows in a box, about."""

MOST_BOXES = 512
"""Files that are open at once."""

HEAD_BYTES = 16 * 2**20
"""Rows that are looked at to see how large a row is."""

HELD_BYTES = 64 * 2**20
"""Rows that wait in memory before they go to their boxes, so that few small pieces are written."""

LARGE_BYTES = 4 * BOX_BYTES
"""A box with more is boxed once more: of many rows, or where the first ones are smaller than the others."""


def in_order(
    batches: Iterable[pa.RecordBatch], by: str, rows_total: int
) -> Iterator[pa.RecordBatch]:
    """The same rows, ascending by the column `by`, whose numbers are below `rows_total`. Holds a few boxes
    in memory, and all rows in the folder of temporary files.

    Raises Permanent where a number comes twice, StorageUnavailable where the folder is full.
    """
    with spill_folder() as folder:
        yield from _in_order(batches, by, range(rows_total), folder, least_boxes=1)


def _in_order(
    batches: Iterable[pa.RecordBatch], by: str, numbers: range, folder: Path, least_boxes: int
) -> Iterator[pa.RecordBatch]:
    coming = iter(batches)
    head = _head(coming)
    if not head:
        return
    schema = head[0].schema
    boxes = min(MOST_BOXES, max(least_boxes, _boxes_wanted(head, len(numbers))))
    width = max(1, -(-len(numbers) // boxes))
    size_bytes: Counter[int] = Counter()
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for table in _held(head, coming, schema):
            for box, piece in _boxed(table, by, numbers.start, width):
                if box not in writers:
                    new = pa.ipc.new_file(str(folder / str(box)), schema)
                    writers[box] = stack.enter_context(new)
                writers[box].write_table(piece)
                size_bytes[box] += piece.nbytes
    head.clear()
    for box in sorted(writers):
        first = numbers.start + box * width
        own = range(first, first + width)
        yield from _emptied(folder / str(box), by, own, size_bytes[box] > LARGE_BYTES)


def _emptied(file: Path, by: str, numbers: range, large: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a box in order; its file is gone afterwards."""
    with pa.ipc.open_file(str(file)) as reader:
        if large and len(numbers) > 1:
            inner = file.with_suffix(".boxes")
            inner.mkdir()
            pieces = (reader.get_batch(at) for at in range(reader.num_record_batches))
            yield from _in_order(pieces, by, numbers, inner, least_boxes=2)
        else:
            yield from _sorted(reader.read_all(), by).to_batches()
    file.unlink()


def _head(coming: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    head, size_bytes = [], 0
    for batch in coming:
        head.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= HEAD_BYTES:
            break
    return head


def _boxes_wanted(head: Sequence[pa.RecordBatch], rows_total: int) -> int:
    """How many boxes of BOX_BYTES hold so many rows like the first ones."""
    rows = max(1, sum(int(batch.num_rows) for batch in head))
    size_bytes = sum(int(batch.nbytes) for batch in head)
    return max(1, -(-rows_total * size_bytes // (rows * BOX_BYTES)))


def _sorted(table: pa.Table, by: str) -> pa.Table:
    found = table.sort_by(by)
    if (np.diff(found.column(by).to_numpy()) == 0).any():
        raise Permanent(f"a {by} comes twice among the rows, which must not be")
    return found


def _held(
    head: Iterable[pa.RecordBatch], coming: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for source in (head, coming):
        for batch in source:
            held.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= HELD_BYTES:
                yield pa.Table.from_batches(held, schema)
                held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def _boxed(table: pa.Table, by: str, first: int, width: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each box that has some of them."""
    box = (table.column(by).to_numpy() - first) // width
    order = np.argsort(box, kind="stable")
    numbers, firsts = np.unique(box[order], return_index=True)
    ordered = table.take(pa.array(order))
    stops = [*firsts[1:].tolist(), len(order)]
    for number, start, stop in zip(numbers.tolist(), firsts.tolist(), stops, strict=True):
        yield number, ordered.slice(start, stop - start)
