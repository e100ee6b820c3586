"""Where the batches of a file end when its rows are so large that a full batch passes `batch.bytes`.

Cuts are numbers of rows of the file up to the end of each batch, ascending.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from nightshift.common import storage
from nightshift.common.formats.jsonl.plan import Scan, row_ends
from nightshift.common.formats.parquet import decoded_size
from nightshift.common.formats.parquet.footer import Footer


def cut_rows(
    groups: Iterable[tuple[int, int]], batch_rows: int, batch_bytes: int
) -> "array[int] | None":
    """Cuts by the (rows, bytes) of row groups, whose rows count as equally large.

    None where every batch of `batch_rows` rows stays within `batch_bytes`. A row that is larger is
    a batch by itself.
    """
    averages = [(rows, size / rows) for rows, size in groups if rows]
    if all(batch_rows * row_bytes <= batch_bytes for _, row_bytes in averages):
        return None
    cuts = array("q")
    at, taken, room = 0, 0, float(batch_bytes)
    for rows, row_bytes in averages:
        end = at + rows
        while at < end:
            fit = int(room / row_bytes) if row_bytes else rows
            full = taken == batch_rows or (taken and fit <= 0)
            if full:
                cuts.append(at)
                taken, room = 0, float(batch_bytes)
                continue
            some = min(max(1, fit), batch_rows - taken, end - at)
            at, taken, room = at + some, taken + some, room - some * row_bytes
    if taken:
        cuts.append(at)
    return cuts


def group_sizes(
    uri: str,
    footer: Footer,
    columns: Collection[str] | None,
    rows: int,
    batch: tuple[int, int],
) -> Iterator[tuple[int, int]]:
    """Rows and decoded bytes of the row groups that hold the first `rows` rows, as far as known.

    Only the columns that a job reads count; None: all of them. `batch` has the most rows and bytes of
    a batch. By the footer, and in a file with dictionaries in which large texts could stand by the
    headers of the largest ones.
    """
    batch_rows, batch_bytes = batch
    metadata = footer.metadata
    wanted = range(bisect_left(footer.starts, rows, hi=metadata.num_row_groups))
    unsure = [
        number
        for number in wanted
        if decoded_size.may_be_larger(metadata.row_group(number), columns, batch_rows, batch_bytes)
    ]
    values: dict[str, float] = {}
    if unsure:
        groups = map(metadata.row_group, unsure)
        largest = max(groups, key=lambda group: decoded_size.dictionary_bytes(group, columns))
        values = decoded_size.value_bytes(uri, largest, columns)
    for number in wanted:
        start, stop = footer.starts[number : number + 2]
        size = decoded_size.decoded_bytes(metadata.row_group(number), columns, values)
        kept = min(stop, rows) - start
        yield kept, size * kept // max(1, stop - start)


def cut_lines(
    uri: str, scan: Scan, batch_rows: int, batch_bytes: int
) -> "tuple[Scan, array[int] | None]":
    """The scan with its larger batches cut to `batch_bytes`, and the cuts; None where none is larger.

    Only the batches that are larger are read again.
    """
    starts = np.concatenate([[scan.start], scan.ends[:-1]]).astype(np.int64)
    if not scan.rows or int(np.subtract(scan.ends, starts).max()) <= batch_bytes:
        return scan, None
    ends, cuts, row = array("q"), array("q"), 0
    with storage.open_input(uri) as handle:
        for start, end in zip(starts.tolist(), scan.ends, strict=True):
            rows = min(batch_rows, scan.rows - row)
            if end - start > batch_bytes:
                places = row_ends(handle, start, rows)
                for taken, place in _fitting(np.frombuffer(places, np.int64), start, batch_bytes):
                    ends.append(place)
                    cuts.append(row + taken)
            else:
                ends.append(end)
                cuts.append(row + rows)
            row += rows
    return Scan(scan.rows, scan.start, ends), cuts


def _fitting(
    places: "np.ndarray[tuple[int], np.dtype[np.int64]]", start: int, batch_bytes: int
) -> Iterable[tuple[int, int]]:
    """(rows so far, end) of each piece of at most `batch_bytes` bytes, or of one row."""
    taken = 0
    while taken < len(places):
        taken = max(taken + 1, int(places.searchsorted(start + batch_bytes, side="right")))
        start = int(places[taken - 1])
        yield taken, start
