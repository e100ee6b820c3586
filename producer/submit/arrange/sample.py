"""Which rows the decision about an order looks at: runs of neighbours all over the dataset."""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges
from nightshift.common.formats.values import to_list
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.arrange.savings import (
    Beginnings,
    SharingSample,
    beginnings,
    levels_of,
)
from nightshift.producer.submit.planning.plan_reader import PlanReader
from nightshift.producer.submit.planning.planner import Plan

RUNS = 64
RUN_ROWS = 64
"""Rows that stand side by side show what a cache has in dataset order, the others what it has not."""

READING_THREADS = 8
"""Runs that are read at once: reading from object stores is mostly waiting."""

CACHE_BYTES = 64 * 2**20

SEED = 7


def sharing_sample(spec: JobSpec, plan: Plan, columns: Sequence[str]) -> SharingSample:
    """What 64 runs of 64 rows begin with, all rows of a smaller dataset; the same for each submit.

    Of each row only digests are kept: of documents of a megabyte the texts would take gigabytes. Raises
    what reading the rows of a batch raises.
    """
    reader = PlanReader(spec, plan, CACHE_BYTES)

    def read(batch: Descriptor) -> list[Beginnings]:
        rows = reader.read(batch, columns)
        values = [to_list(rows.table.column(name)) for name in columns]
        return [beginnings("\0".join(map(_text, row))) for row in zip(*values, strict=True)]

    with ThreadPoolExecutor(READING_THREADS) as threads:
        sampled = [
            row for found in threads.map(storage.carried(read), _runs(plan)) for row in found
        ]
    row_tokens, levels = levels_of(sampled)
    return SharingSample(plan.rows_total, RUN_ROWS, row_tokens, levels)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _runs(plan: Plan) -> Iterator[Descriptor]:
    """Pieces of the plan's batches that together are the runs."""
    total = plan.rows_total
    if total <= RUNS * RUN_ROWS:
        firsts, length = [0], total
    else:
        places = range(total // RUN_ROWS)
        firsts = [RUN_ROWS * place for place in sorted(random.Random(SEED).sample(places, RUNS))]
        length = RUN_ROWS
    at = low = 0
    for batch in plan.batches():
        high = low + len(batch.rows)  # rows that are the job's, which may lie apart
        pieces = RowRanges(())
        while at < len(firsts) and firsts[at] < high:
            stop = firsts[at] + length
            own = batch.rows.between(max(firsts[at] - low, 0), min(stop, high) - low)
            pieces = pieces.union(own)
            if stop > high:
                break
            at += 1
        if pieces.ranges:
            yield dataclasses.replace(batch, rows=pieces)
        low = high
