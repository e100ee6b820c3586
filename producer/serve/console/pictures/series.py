"""The life of a job as points: running totals of the leases that ended. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class Point(NamedTuple):
    """What leases of a job had brought at a moment, in seconds since 1970; totals never fall."""

    at: float
    done: int = 0
    failed: int = 0
    prompt: int = 0
    output: int = 0


def points(leases: Iterable[Mapping[Any, Any]], step: int, began: float, now: float) -> list[Point]:
    """The points of a life from `began` to `now`, one for each lease that ended with rows or tokens, each of which
    counts for `step` leases.
    """
    found = [Point(began)]
    for lease in sorted(leases, key=lambda lease: lease["ended"]):
        last = found[-1]
        failed, prompt, output = lease["failed"], lease["prompt"], lease["output"]
        done = max(lease["rows"] - failed, 0)
        if done or failed or prompt or output:
            found.append(
                Point(
                    # A clock that was set back moves no point before another one.
                    max(min(lease["ended"], now), last.at),
                    last.done + step * done,
                    last.failed + step * failed,
                    last.prompt + step * prompt,
                    last.output + step * output,
                )
            )
    return [*found, found[-1]._replace(at=max(now, found[-1].at))]


def rates(points: Sequence[Point], column: str, edges: Sequence[float]) -> list[float]:
    """What came a second between each two neighbours of `edges` (seconds since 1970, rising). Between two points the
    rate is even.
    """
    place = Point._fields.index(column)
    totals = [point[place] for point in points]
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
