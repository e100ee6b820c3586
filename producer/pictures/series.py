"""The life of a job as points: running totals, at most MOST_POINTS of them, evenly spread however long a job lives."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

MOST_POINTS = 500


class Point(NamedTuple):
    """What a job had at a moment, in seconds since 1970. `cached` are those of the prompt tokens that a cache had,
    `thought` those of the output tokens before the answer.
    """

    at: float
    total: int
    done: int
    failed: int
    prompt: int
    cached: int
    output: int
    thought: int


def added(points: Sequence[Point], new: Point) -> list[Point]:
    """The points with a new one. Later ones go: the clock was set back. Of a time without a change the first and the
    last point stay.
    """
    kept = [point for point in points if point.at < new.at]
    if len(kept) > 1 and kept[-1][1:] == kept[-2][1:] == new[1:]:
        kept.pop()
    return thinned([*kept, new])


def thinned(points: list[Point]) -> list[Point]:
    """At most MOST_POINTS: while there are more, the one goes whose neighbours are nearest to each other, so that the
    rest is spread evenly over the life. The first and the last stay.
    """
    points = list(points)
    while len(points) > MOST_POINTS:
        del points[
            min(range(1, len(points) - 1), key=lambda at: points[at + 1].at - points[at - 1].at)
        ]
    return points


def rising(values: Iterable[float]) -> list[float]:
    """Running totals without falls: what was taken back when rows run again counts anew once it is there again."""
    found: list[float] = []
    last = 0.0
    for value in values:
        found.append((found[-1] if found else 0.0) + max(value - last, 0))
        last = value
    return found


def rates(points: Sequence[Point], column: str, edges: Sequence[float]) -> list[float]:
    """What came a second between each two neighbours of `edges` (seconds since 1970, rising), never below 0. Between
    two points the rate is even.
    """
    place = Point._fields.index(column)
    totals = rising(point[place] for point in points)
    times = [point.at for point in points]
    at_edges, behind = [], 0
    for edge in edges:
        while behind < len(times) and times[behind] <= edge:
            behind += 1
        at_edges.append(_between(times, totals, behind, edge))
    return [
        (after - before) / (stop - start) if stop > start else 0.0
        for (before, after), (start, stop) in zip(pairwise(at_edges), pairwise(edges), strict=True)
    ]


def _between(times: Sequence[float], totals: Sequence[float], behind: int, at: float) -> float:
    """The total at a moment; `behind` is the first point after it."""
    if not totals:
        return 0.0
    if behind == 0:
        return totals[0]
    if behind == len(totals):
        return totals[-1]
    share = (at - times[behind - 1]) / (times[behind] - times[behind - 1])
    return totals[behind - 1] + share * (totals[behind] - totals[behind - 1])
