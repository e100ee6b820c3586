"""The speed of a function from looks at it: the true one lies in the range, or the upper bound is open."""

import math
import random

import pytest

from nightshift.common.ledger.jobs.spending import Commit
from nightshift.producer.estimate.forecast import Range
from nightshift.producer.estimate.function_pace import RUNS_DIFFER, function_pace


def look(
    batches: int, rows: int, *, start: float = 0.05, batch: float = 0.01, row: float = 0.0
) -> list[Commit]:
    """Commits of one child: its start, and what a batch and a row of it take; about, as in life."""
    chance = random.Random(3)
    return [
        Commit(
            rows,
            (batch + row * rows) * chance.uniform(0.9, 1.1) + (0 if place else start),
            0,
            1,
            is_first=not place,
        )
        for place in range(batches)
    ]


ROW_SECONDS = {"trivial": 10e-6, "medium": 1e-3, "slow": 50e-3}


@pytest.mark.parametrize("row", ROW_SECONDS.values(), ids=ROW_SECONDS)
@pytest.mark.parametrize("start", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("batch", [0.0005, 0.01, 0.5])
@pytest.mark.parametrize(
    ("batches", "rows"), [(1, 200), (4, 50), (16, 13), (4, 256), (80, 256), (800, 256), (200, 1)]
)
def test_the_true_speed_lies_in_the_range_whatever_a_start_a_batch_and_a_row_take(
    row: float, start: float, batch: float, batches: int, rows: int
) -> None:
    found = function_pace(look(batches, rows, start=start, batch=batch, row=row), 256)
    assert found is not None
    assert found.low <= 256 / (batch + 256 * row) <= found.high


@pytest.mark.parametrize(
    ("seen", "batch_rows", "least", "most"),
    [
        # Over in 0.13 s: at least so fast, and nobody knows how much faster.
        (look(4, 50, batch=0.02), 256, 200 / 0.13 / 3, math.inf),
        # One commit, however long it took, has the start in it.
        (look(1, 200, start=0, row=0.05), 256, 200 / 10 / 2, math.inf),
        # A long look in batches of the job's own size.
        (look(400, 256), 256, 25_600 / 1.7, 25_600 * 1.7),
        # A fifth of the job's batches: a call of 256 rows may take as long as one of 50.
        (look(40, 50, row=0.01), 256, 50, 100 * 5.12 * 1.7),
        # Larger batches than the job's.
        (look(40, 256, row=0.01), 64, 15, 170),
    ],
    ids=["short", "one commit", "long", "small batches", "large batches"],
)
def test_a_range_is_as_narrow_as_what_was_seen_allows(
    seen: list[Commit], batch_rows: float, least: float, most: float
) -> None:
    found = function_pace(seen, batch_rows)
    assert found is not None
    assert least <= found.low < found.high <= most
    assert math.isinf(found.high) == math.isinf(most)


def test_the_middle_is_known_for_batches_of_the_same_size_alone() -> None:
    seen = look(100, 50, row=0.01)
    middles = {rows: function_pace(seen, rows).middle for rows in (10, 40, 60, 256)}  # type: ignore[union-attr]
    assert middles[10] is middles[256] is None
    assert middles[40] == middles[60] == pytest.approx(100, rel=0.1)


def test_one_long_run_gives_bounds_by_how_far_another_may_differ() -> None:
    seen = [Commit(100, 1.0, 0, 1, is_first=not place) for place in range(50)]
    assert function_pace(seen, 100) == Range(100 / RUNS_DIFFER, 100, 100 * RUNS_DIFFER)


def test_no_commit_and_no_time_have_no_speed() -> None:
    assert function_pace([], 256) is None
    assert function_pace([Commit(10, 0.0, 0, 1, is_first=True)], 256) is None
