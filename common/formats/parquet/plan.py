"""Parquet planned: where the batches of a file end when its rows are so large that a full batch passes
`batch.bytes`.

Cuts are numbers of rows of the file up to the end of each batch, ascending.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from nightshift.common.formats.format import Wanted
from nightshift.common.formats.parquet import decoded_size
from nightshift.common.formats.parquet.footer import Footer


def cuts(uri: str, footer: Footer, rows: int, wanted: Wanted) -> "array[int] | None":
    """The cuts of a file, see `cut_rows`, by the decoded sizes of its row groups, see `group_sizes`."""
    batch = (wanted.batch_rows, wanted.batch_bytes)
    return cut_rows(group_sizes(uri, footer, wanted.sized, rows, batch), *batch)


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
