"""How many rows a second a function will do, from what runs of it did; pure.

An engine for models is slow beside everything around it, a function need not be: the first commit of a
process has the start of its work in it, and each batch costs the same whether it has 10 rows or 1,000. So
the time of a short look says little about a long job. What it does say are bounds.
"""

import math
from collections.abc import Sequence

from nightshift.common.ledger.jobs.spending import Commit
from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.forecast import Range

SHORT_SECONDS = 1.0
"""A look that was shorter gives the least speed alone: nobody knows which part of it was the start."""

RUNS_DIFFER = 1.5
"""How far the speed of another run of the same function on the same machine may be from this one's, since
the machine does other things, too: pilots of 20,000 rows and runs of 200,000 differed by 1.3."""

LIKE_BATCHES = 1.5
"""Batches that are larger or smaller by no more than this count as batches of the same size."""


def function_pace(commits: Sequence[Commit], batch_rows: float) -> Range | None:
    """Rows a second of a function in batches of `batch_rows` rows; None where no time has passed.

    Slowest is: the whole time, its start included, is time of rows. Fastest is: without the first commit of
    each child, all of it is time of batches, however many rows one has. After less than SHORT_SECONDS the
    fastest is infinite.
    """
    whole = forecast.ratio_range([(each.rows, each.engine_seconds) for each in commits])
    if whole is None or not whole.low:
        return whole
    growth = batch_growth(commits, batch_rows)
    low = whole.low * min(1.0, growth) / RUNS_DIFFER
    later = forecast.ratio_range(
        [(each.rows, each.engine_seconds) for each in commits if not each.is_first]
    )
    if seconds_of(commits) < SHORT_SECONDS or later is None:
        return Range(low, None, math.inf)
    high = max(whole.high, later.high) * max(1.0, growth) * RUNS_DIFFER
    is_alike = 1 / LIKE_BATCHES <= growth <= LIKE_BATCHES
    return Range(low, whole.middle if is_alike else None, high)


def batch_growth(commits: Sequence[Commit], batch_rows: float) -> float:
    """How many times larger the batches of the job are than those that were measured."""
    rows = sum(each.rows for each in commits)
    return batch_rows * sum(each.batches for each in commits) / rows if rows else 1.0


def seconds_of(commits: Sequence[Commit]) -> float:
    """Engine seconds of all commits."""
    return sum(each.engine_seconds for each in commits)
