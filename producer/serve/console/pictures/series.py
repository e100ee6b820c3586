"""Cumulative rows and tokens of a job over time, and their rates. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class Point(NamedTuple):
    """Cumulative rows and tokens at a time `at`, in seconds since 1970."""

    at: float
    done: int = 0
    failed: int = 0
    prompt: int = 0
    output: int = 0


def points(
    leases: Iterable[Mapping[Any, Any]], weight: int, began: float, now: float
) -> list[Point]:
    """Return the points from `began` to `now`, in order: one for each lease with rows or tokens, as returned by
    `job_leases.ended`. Each lease of a sample counts `weight` times.
    """
    found = [Point(began)]
    for lease in sorted(leases, key=lambda lease: lease["ended"]):
        last = found[-1]
        failed, prompt, output = lease["failed"], lease["prompt"], lease["output"]
        done = max(lease["rows"] - failed, 0)
        if done or failed or prompt or output:
            found.append(
                Point(
                    # Keep the points in order if the server's clock was set back.
                    max(min(lease["ended"], now), last.at),
                    last.done + weight * done,
                    last.failed + weight * failed,
                    last.prompt + weight * prompt,
                    last.output + weight * output,
                )
            )
    return [*found, found[-1]._replace(at=max(now, found[-1].at))]


def rates(points: Sequence[Point], column: str, edges: Sequence[float]) -> list[float]:
    """Return the mean rate per second of a column between consecutive `edges` (seconds since 1970, ascending), by linear
    interpolation between the points.
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
    """Return the total at a time; `behind` is the index of the first later point."""
    if not totals:
        return 0.0
    if behind == 0:
        return totals[0]
    if behind == len(totals):
        return totals[-1]
    share = (at - times[behind - 1]) / (times[behind] - times[behind - 1])
    return totals[behind - 1] + share * (totals[behind] - totals[behind - 1])
