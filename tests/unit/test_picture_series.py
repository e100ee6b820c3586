"""Points of a job's life: how many are kept, which go, and what came a second."""

from itertools import pairwise

import pytest

from nightshift.producer.pictures import record, series
from nightshift.producer.pictures.series import MOST_POINTS, Point


def point(at: float, done: int = 0, failed: int = 0) -> Point:
    return Point(at, 1000, done, failed, 0, 0, 0, 0)


def test_there_are_never_more_points_than_the_most_and_the_first_and_the_last_stay() -> None:
    points: list[Point] = []
    for at in range(5 * MOST_POINTS):
        points = series.added(points, point(at, done=at))
        assert len(points) <= MOST_POINTS
        assert (points[0].at, points[-1].at) == (0, at)
    gaps = [after.at - before.at for before, after in pairwise(points)]
    assert max(gaps) <= 4 * len(gaps) / MOST_POINTS * 5, "spread over the whole life"


def test_the_point_goes_whose_neighbours_are_nearest() -> None:
    points = [point(at) for at in [0, 1, *range(2, 2 * MOST_POINTS, 2)]]
    assert len(points) == MOST_POINTS + 1
    assert [each.at for each in series.thinned(points)] == list(range(0, 2 * MOST_POINTS, 2))


def test_of_a_time_without_a_change_two_points_stay() -> None:
    points: list[Point] = []
    for at, done in [(0, 0), (1, 5), (2, 5), (3, 5), (4, 5), (5, 6)]:
        points = series.added(points, point(at, done))
    assert [each.at for each in points] == [0, 1, 4, 5]


def test_points_of_a_clock_that_was_set_back_go() -> None:
    points = [point(0), point(10, 1), point(5000, 2)]
    assert [each.at for each in series.added(points, point(20, 3))] == [0, 10, 20]
    assert [each.at for each in series.added(points, point(-5, 3))] == [-5]
    assert [each.at for each in series.added(points, point(10, 3))] == [0, 10]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], []),
        ([0, 5, 9], [0, 5, 9]),
        ([3, 5], [3, 5]),
        ([0, 10, 4, 10], [0, 10, 10, 16]),  # six rows were taken back, and ran again
        ([10, 0, 0], [10, 10, 10]),
    ],
)
def test_totals_never_fall(given: list[int], found: list[int]) -> None:
    assert series.rising(given) == found


@pytest.mark.parametrize(
    ("points", "edges", "found"),
    [
        ([], [0, 1, 2], [0, 0]),
        ([(0, 0)], [0, 1], [0]),
        ([(0, 0), (10, 100)], [0, 5, 10], [10, 10]),
        (
            [(0, 0), (10, 100)],
            [-10, 0, 20],
            [0, 5],
        ),  # before the first and after the last nothing came
        ([(0, 0), (10, 100), (20, 40), (30, 100)], [0, 10, 20, 30], [10, 0, 6]),
        ([(0, 0), (1, 8), (4, 8), (8, 16)], [0, 4, 8], [2, 2]),
        ([(0, 0), (10, 100)], [3, 3], [0]),
    ],
)
def test_what_came_a_second(
    points: list[tuple[float, int]], edges: list[float], found: list[float]
) -> None:
    given = [point(at, done) for at, done in points]
    assert series.rates(given, "done", edges) == pytest.approx(found)


@pytest.mark.parametrize(
    ("life", "took", "is_closed", "is_cut", "found"),
    [
        (0, 0.001, False, False, 5),
        (86_400, 0.001, False, False, 172.8),
        (86_400, 3.0, False, False, 300),
        (-60, 0.001, False, False, 5),
        (86_400, 3.0, True, False, None),
        (86_400, 3.0, True, True, 5),
        (86_400, 3.0, False, True, 5),
    ],
)
def test_when_a_job_is_looked_at_again(
    life: float, took: float, is_closed: bool, is_cut: bool, found: float | None
) -> None:
    assert record.pause(life, took, is_closed=is_closed, is_cut=is_cut) == found
