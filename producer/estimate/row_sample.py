"""A random sample of a dataset's rows, read through the plan's own descriptors."""

import dataclasses
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges
from nightshift.common.formats.input_rows import Rows
from nightshift.common.formats.values import table_of
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.planning.plan_reader import PlanReader
from nightshift.producer.submit.planning.planner import Plan

READING_THREADS = 8
"""Batches that are read at once: reading from object stores is mostly waiting."""

CACHE_BYTES = 256 * 2**20
"""Decoded row groups that are kept, so that the sampled rows of one are read together."""


def sample_rows(plan: Plan, spec: JobSpec, count: int, seed: int) -> Rows:
    """`count` random rows with the columns that the job reads; each row is equally likely.

    The same plan and seed give the same rows, in dataset order.
    """
    reader = PlanReader(spec, plan, CACHE_BYTES)

    def read(batch: Descriptor) -> Rows:
        return reader.read(batch, spec.read_columns)

    with ThreadPoolExecutor(READING_THREADS) as threads:
        return _joined(
            list(threads.map(storage.carried(read), _sampled_batches(plan, count, seed)))
        )


def _sampled_batches(plan: Plan, count: int, seed: int) -> Iterator[Descriptor]:
    """Each batch that has sampled rows, cut down to them."""
    total = plan.rows_total
    sampled = sorted(random.Random(seed).sample(range(total), min(count, total)))
    at = before = 0
    for batch in plan.batches():
        stop = before + len(batch.rows)
        first = at
        while at < len(sampled) and sampled[at] < stop:
            at += 1
        if at > first:
            numbers = list(batch.rows)
            chosen = (numbers[place - before] for place in sampled[first:at])
            yield dataclasses.replace(batch, rows=RowRanges.from_indices(chosen))
        before = stop


def _joined(parts: list[Rows]) -> Rows:
    def tables(found: list[pa.Table]) -> pa.Table:
        joined = pa.concat_tables(found, promote_options="permissive")
        if joined.num_columns:
            return joined
        return table_of({}, sum(table.num_rows for table in found))  # which Arrow does not add up

    return Rows(
        table=tables([part.table for part in parts]),
        row_index=[index for part in parts for index in part.row_index],
        bad={index: why for part in parts for index, why in part.bad.items()},
        bad_table=tables([part.bad_table for part in parts]),
    )
