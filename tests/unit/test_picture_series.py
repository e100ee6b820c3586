"""The life of a job as points: what leases add to it, and what came a second."""

from collections.abc import Mapping
from typing import Any

import pytest

from nightshift.producer.serve.console.pictures import series
from nightshift.producer.serve.console.pictures.series import Point


def lease(
    ended: float, rows: int, failed: int = 0, prompt: int = 0, output: int = 0
) -> Mapping[str, Any]:
    return {"ended": ended, "rows": rows, "failed": failed, "prompt": prompt, "output": output}


@pytest.mark.parametrize(
    ("leases", "step", "found"),
    [
        ([], 1, [(0,), (100,)]),
        ([lease(10, 5)], 1, [(0,), (10, 5), (100, 5)]),
        # In the order in which they ended; those without a row and a token are no change.
        (
            [lease(20, 4, 1, 7, 3), lease(10, 5), lease(15, 0)],
            1,
            [(0,), (10, 5), (20, 8, 1, 7, 3), (100, 8, 1, 7, 3)],
        ),
        # Each of a thinned part of the leases counts for those that were left out.
        ([lease(10, 5, 1, 2, 3)], 20, [(0,), (10, 80, 20, 40, 60), (100, 80, 20, 40, 60)]),
        # The rows of a dead batch failed, though its lease returned none.
        ([lease(10, 0, 9)], 1, [(0,), (10, 0, 9), (100, 0, 9)]),
        # Clocks that were set back or forth move no point out of the life.
        ([lease(-5, 1), lease(900, 1)], 1, [(0,), (0, 1), (100, 2), (100, 2)]),
    ],
)
def test_the_points_of_a_life(
    leases: list[Mapping[str, Any]], step: int, found: list[tuple[float, ...]]
) -> None:
    assert series.points(leases, step, 0.0, 100.0) == [Point(*each) for each in found]


def test_a_job_that_began_in_the_future_has_a_life_without_length() -> None:
    assert series.points([], 1, 100.0, 50.0) == [Point(100.0), Point(100.0)]


@pytest.mark.parametrize(
    ("points", "edges", "found"),
    [
        ([], [0, 1, 2], [0, 0]),
        ([(0, 0)], [0, 1], [0]),
        ([(0, 0), (10, 100)], [0, 5, 10], [10, 10]),
        ([(0, 0), (10, 100)], [-10, 0, 20], [0, 5]),  # nothing before the first, after the last
        ([(0, 0), (1, 8), (4, 8), (8, 16)], [0, 4, 8], [2, 2]),
        ([(0, 0), (10, 100)], [3, 3], [0]),
        ([(0, 0), (10, 50), (10, 100), (20, 100)], [0, 10, 20], [10, 0]),  # two at one moment
    ],
)
def test_what_came_a_second(
    points: list[tuple[float, int]], edges: list[float], found: list[float]
) -> None:
    given = [Point(*each) for each in points]
    assert series.rates(given, "done", edges) == pytest.approx(found)
