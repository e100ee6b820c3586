"""A figure with a low and a high bound."""

import operator
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with its bounds, such as the rows per second of a job, or the seconds to its end.

    The three are equal if it is unknown how much the figure varies. `likely` is None if only the bounds are known;
    `high` is infinite without an upper bound.
    """

    low: float
    likely: float | None
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Range":
        """Return a figure without bounds."""
        return cls(value, value, value)

    def __add__(self, other: "Range") -> "Range":
        """Return the sum; its bounds are the sums of the bounds."""
        return self._with(other, operator.add)

    def times(self, factor: float) -> "Range":
        """Return every figure times a positive factor."""
        likely = None if self.likely is None else self.likely * factor
        return Range(self.low * factor, likely, self.high * factor)

    def under(self, whole: float) -> "Range | None":
        """Return `whole` over each figure, such as rows over rows per second; None if one may be 0."""
        if self.low <= 0:
            return None
        likely = None if self.likely is None else whole / self.likely
        return Range(whole / self.high, likely, whole / self.low)

    def at_least(self, other: "Range") -> "Range":
        """Return the larger figure at each end."""
        return self._with(other, max)

    def _with(self, other: "Range", combine: Callable[[float, float], float]) -> "Range":
        likely = None
        if self.likely is not None and other.likely is not None:
            likely = combine(self.likely, other.likely)
        return Range(combine(self.low, other.low), likely, combine(self.high, other.high))
