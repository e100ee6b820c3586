"""When a job ends, as a fan: at its pace and the bounds of that. Pure."""

from dataclasses import dataclass

from nightshift.common.ledger.queries.job_pace import Pace

FARTHEST_SECONDS = 100 * 365 * 86_400.0
"""A later end is not drawn: calendars end, too."""


@dataclass(frozen=True, slots=True)
class Fan:
    """Rows per second and the moment of the end: likely, at the fast side, at the slow side. `slow_end` is None if the
    job does not end at the slow pace.
    """

    now: float
    rate: float
    fast: float
    slow: float
    end: float
    fast_end: float
    slow_end: float | None


def fan(pace: Pace | None, now: float) -> Fan | None:
    """Return the forecast at a pace; None without a time to the end, and for an end out of sight."""
    if pace is None or pace.eta is None or pace.eta.likely is None:
        return None
    rate, eta = pace.rows_per_second, pace.eta
    if not 0 < pace.eta.likely < FARTHEST_SECONDS or rate.likely is None:
        return None
    slow_end = now + eta.high if eta.high < FARTHEST_SECONDS else None
    return Fan(
        now, rate.likely, rate.high, rate.low, now + pace.eta.likely, now + eta.low, slow_end
    )
