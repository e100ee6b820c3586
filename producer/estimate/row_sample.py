"""A random sample of a dataset's rows, read through the plan's own descriptors."""

import dataclasses
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from nightshift.common.descriptor import Descriptor, RowRanges
from nightshift.common.formats import dataset
from nightshift.common.formats.input_rows import Rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.planner import Plan

READING_THREADS = 8
"""Batches that are read side by side: on object stores it is the wait that costs."""

CACHE_BYTES = 256 * 2**20
"""Decoded row groups that are kept: the sampled rows of one are read at once."""


def sample_rows(plan: Plan, spec: JobSpec, count: int, seed: int) -> Rows:
    """So many rows with the columns that the job reads, each as likely as any other.

    The same plan and seed give the same rows, in dataset order.
    """
    cache = ReadCache(CACHE_BYTES)

    def read(place: Descriptor) -> Rows:
        return dataset.read_rows(spec, place, spec.read_columns, cache, plan.schema)

    with ThreadPoolExecutor(READING_THREADS) as threads:
        return _joined(list(threads.map(read, _places(plan, count, seed))))


def _places(plan: Plan, count: int, seed: int) -> Iterator[Descriptor]:
    """The drawn rows of each batch that has any."""
    total = plan.rows_total
    drawn = sorted(random.Random(seed).sample(range(total), min(count, total)))
    at = 0
    for batch in plan.batches():
        stop = batch.rows.ranges[-1][1]
        first = at
        while at < len(drawn) and drawn[at] < stop:
            at += 1
        if at > first:
            yield dataclasses.replace(batch, rows=RowRanges.from_indices(drawn[first:at]))


def _joined(parts: list[Rows]) -> Rows:
    def tables(found: list[pa.Table]) -> pa.Table:
        return pa.concat_tables(found, promote_options="permissive")

    return Rows(
        table=tables([part.table for part in parts]),
        row_index=[index for part in parts for index in part.row_index],
        bad={index: why for part in parts for index, why in part.bad.items()},
        bad_table=tables([part.bad_table for part in parts]),
    )
