"""When a job ends, as a fan: by its rate now, and by how much the rate varied lately. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.producer.serve.console.pictures import series
from nightshift.producer.serve.console.pictures.series import Point

WINDOWS = 10
"""Pieces of the last third of a life, whose rates say how much the rate varies."""

FARTHEST_SECONDS = 100 * 365 * 86_400.0
"""An end that is farther away is none: a calendar ends, too."""


@dataclass(frozen=True, slots=True)
class Fan:
    """Rows a second and the moment of the end: likely, at the fast side, at the slow side. `slow_end` is None where
    nothing says that the job ever ends at the slow rate.
    """

    now: float
    rate: float
    fast: float
    slow: float
    end: float
    fast_end: float
    slow_end: float | None


def fan(points: Sequence[Point], now: float, left: int, rate: float | None) -> Fan | None:
    """The forecast for `left` rows; None without a rate, where no row is left, and for an end out of sight.

    `rate` is the one that the page shows. The last third of the life is cut into WINDOWS pieces; the 10th and the 90th
    percentile of their rates are the slow and the fast side, never on the wrong side of `rate`.
    """
    if not rate or left <= 0 or len(points) < 2 or left > rate * FARTHEST_SECONDS:
        return None
    begin = now - (now - points[0].at) / 3
    edges = [begin + (now - begin) * at / WINDOWS for at in range(WINDOWS + 1)]
    pairs = zip(
        series.rates(points, "done", edges), series.rates(points, "failed", edges), strict=True
    )
    deciles = statistics.quantiles([sum(pair) for pair in pairs], n=10, method="inclusive")
    slow, fast = min(deciles[0], rate), max(deciles[-1], rate)
    slow_end = now + left / slow if left < slow * FARTHEST_SECONDS else None
    return Fan(now, rate, fast, slow, now + left / rate, now + left / fast, slow_end)
