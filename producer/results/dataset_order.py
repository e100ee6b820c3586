"""The rows of an arranged job in dataset order: sorted on disk, in bounded memory.

Row indices are the numbers from 0 on, each once, so that rows go into boxes of neighbouring indices, and
each box is sorted by itself. Boxes are Arrow files, which keep every type.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

BOX_BYTES = 64 * 2**20
"""Bytes of rows in a box, about."""

MOST_BOXES = 512
"""Files that are open at once. Of a dataset of more than 32 GB each box is larger."""

HEAD_BYTES = 16 * 2**20
"""Rows that are looked at to see how large a row is."""

HELD_BYTES = 128 * 2**20
"""Rows that wait in memory before they go to their boxes, so that few small pieces are written."""


def in_dataset_order(
    batches: Iterable[pa.RecordBatch], rows_total: int
) -> Iterator[pa.RecordBatch]:
    """The same rows, ascending by `row_index`, which is below `rows_total`. Files lie in the folder of
    temporary files meanwhile; holds a few boxes.
    """
    coming = iter(batches)
    head, size_bytes = [], 0
    for batch in coming:
        head.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= HEAD_BYTES:
            break
    if not head:
        return
    schema = head[0].schema
    rows = max(1, sum(batch.num_rows for batch in head))
    boxes = min(MOST_BOXES, max(1, -(-rows_total * size_bytes // (rows * BOX_BYTES))))
    width = max(1, -(-rows_total // boxes))
    with tempfile.TemporaryDirectory(prefix="nightshift-collect-") as name:
        folder = Path(name)
        with ExitStack() as stack:
            writers: dict[int, pa.RecordBatchFileWriter] = {}
            for table in _held(head, coming, schema):
                for box, piece in _boxed(table, width):
                    if box not in writers:
                        writers[box] = stack.enter_context(
                            pa.ipc.new_file(str(folder / str(box)), schema)
                        )
                    writers[box].write_table(piece)
        head.clear()
        for box in sorted(writers):
            with pa.ipc.open_file(str(folder / str(box))) as reader:
                yield from reader.read_all().sort_by("row_index").to_batches()
            (folder / str(box)).unlink()


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


def _boxed(table: pa.Table, width: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each box that has some of them."""
    box = table.column("row_index").to_numpy() // width
    order = np.argsort(box, kind="stable")
    numbers, firsts = np.unique(box[order], return_index=True)
    ordered = table.take(pa.array(order))
    stops = [*firsts[1:].tolist(), len(order)]
    for number, first, stop in zip(numbers.tolist(), firsts.tolist(), stops, strict=True):
        yield number, ordered.slice(first, stop - first)
