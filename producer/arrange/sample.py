"""Which rows the decision about an order looks at: runs of neighbours all over the dataset."""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence

from nightshift.common.descriptor import Descriptor, RowRanges
from nightshift.common.formats import input_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_list
from nightshift.common.spec import JobSpec
from nightshift.producer.arrange.worth import SharingSample, levels_of
from nightshift.producer.planning.planner import Plan

RUNS = 64
RUN_ROWS = 64
"""Rows that stand side by side show what a cache has in dataset order, the others what it has not."""

CACHE_BYTES = 64 * 2**20

SEED = 7


def sharing_sample(spec: JobSpec, plan: Plan, columns: Sequence[str]) -> SharingSample:
    """What 64 runs of 64 rows begin with, all rows of a smaller dataset; the same for each submit.

    Raises what reading the rows of a batch raises.
    """
    cache = ReadCache(CACHE_BYTES)
    texts: list[str] = []
    for batch in _runs(plan):
        rows = input_rows.read_rows(spec, batch, spec.read_columns, cache, plan.schema)
        values = [to_list(rows.table.column(name)) for name in columns]
        texts += ["\0".join(map(_text, row)) for row in zip(*values, strict=True)]
    row_tokens, levels = levels_of(texts)
    return SharingSample(plan.rows_total, RUN_ROWS, row_tokens, levels)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else json.dumps(value, default=str)


def _runs(plan: Plan) -> Iterator[Descriptor]:
    """Pieces of the plan's batches that together are the runs."""
    total = plan.rows_total
    if total <= RUNS * RUN_ROWS:
        firsts, length = [0], total
    else:
        places = range(total // RUN_ROWS)
        firsts = [RUN_ROWS * place for place in sorted(random.Random(SEED).sample(places, RUNS))]
        length = RUN_ROWS
    wanted = RowRanges.of(*((first, first + length) for first in firsts))
    for batch in plan.batches():
        low, high = batch.rows.ranges[0][0], batch.rows.ranges[-1][1]
        here = wanted.within(low, high)
        if len(here):
            yield dataclasses.replace(batch, rows=here)
