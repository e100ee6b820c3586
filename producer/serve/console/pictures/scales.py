"""Scales, axes and legends that the pictures share. Pure; times are in seconds since 1970."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from markupsafe import Markup

from nightshift.common.text import duration
from nightshift.producer.serve.console import wording
from nightshift.producer.serve.console.pictures.series import Point

WIDE = 10_000
"""Width of the inner pictures, which are stretched to the page."""

TICKS = 5
"""Times below a picture; a phone shows every second one."""

LEAST_PIECES, MOST_PIECES = 12, 120
"""Steps of a picture."""

SHORT_SECONDS = 600.0
"""Below a shorter time stand the seconds since its begin: hours and minutes would all be the same."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a picture shows."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is, a thousandth of a second at least."""
        return max(self.end - self.begin, 0.001)

    def share(self, at: float) -> float:
        """Where a moment lies, from 0 to 1; moments outside lie at the edge."""
        return min(max((at - self.begin) / self.seconds, 0.0), 1.0)

    def x(self, at: float) -> int:
        """The same in units of WIDE."""
        return round(WIDE * self.share(at))

    def percent(self, at: float) -> str:
        """The same as an attribute."""
        return f"{100 * self.share(at):.2f}%"

    def edges(self, count: int) -> list[float]:
        """The edges of so many equal pieces."""
        return [self.begin + self.seconds * at / count for at in range(count + 1)]


def ceiling(value: float) -> float:
    """The next of 1, 2, 5, 10 … that is not below; 1 for nothing."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def moment(at: float) -> Markup:
    """A time, as all pages write times."""
    return wording.moment(datetime.fromtimestamp(at, UTC))


def pieces(points: Sequence[Point]) -> int:
    """Into how many pieces a life is cut: three changes in a piece, where there are so many, so that batches that come
    one after the other are no comb.
    """
    changes = sum(before[1:] != after[1:] for before, after in pairwise(points))
    return min(max(changes // 3, LEAST_PIECES), MOST_PIECES, max(len(points) - 1, 1))


def clock(span: Span) -> Markup:
    """The line of times below a picture."""
    times = span.edges(TICKS - 1)
    if span.seconds < SHORT_SECONDS:
        shown = [Markup("<span>{}</span>").format(duration(at - span.begin)) for at in times]
    else:
        shown = [moment(at) for at in times]
    return Markup('<div class="clock" aria-hidden="true">{}</div>').format(Markup("").join(shown))


def steps(heights: Sequence[float], xs: Sequence[int], base: float) -> str:
    """The path of an area of steps: a height for each piece between two `xs`, upward from `base`."""
    drawn = [f"M{xs[0]} {base:g}"]
    for height, stop in zip(heights, xs[1:], strict=True):
        drawn.append(f"V{base - height:.1f}H{stop}")
    return "".join([*drawn, f"V{base:g}z"])


def stacked(lower: Sequence[float], upper: Sequence[float], xs: Sequence[int], base: float) -> str:
    """The path of an area of steps that lies on another one: from `lower` to `upper`, upward from `base`."""
    drawn = [f"M{xs[0]} {base - lower[0]:.1f}"]
    for height, stop in zip(upper, xs[1:], strict=True):
        drawn.append(f"V{base - height:.1f}H{stop}")
    pieces = zip(reversed(lower), reversed(xs[:-1]), strict=True)
    drawn += [f"V{base - height:.1f}H{start}" for height, start in pieces]
    return "".join([*drawn, "z"])


def grid(top: int, height: int) -> Markup:
    """Lines at the whole and at the half of a scale, behind the shapes."""
    return Markup("").join(
        Markup('<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>').format(y=y)
        for y in (top, top + height // 2)
    )


def scale(most: float, top: int, height: int, unit: str) -> Markup:
    """The numbers of these lines, before the shapes."""
    lines = ((top, f"{number(most)} {unit}"), (top + height // 2, number(most / 2)))
    return Markup("").join(
        Markup('<text x="2" y="{y}">{text}</text>').format(y=y + 12, text=text) for y, text in lines
    )


def number(value: float) -> str:
    """A number of a scale: whole from 10 on."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def inner(paths: Markup, top: int, height: int) -> Markup:
    """The part of a picture that is stretched to its width."""
    return Markup(
        '<svg y="{top}" width="100%" height="{height}" viewBox="0 0 {wide} {height}" '
        'preserveAspectRatio="none">{paths}</svg>'
    ).format(top=top, height=height, wide=WIDE, paths=paths)


def legend(items: Iterable[tuple[str, object]]) -> Markup:
    """What shapes mean: the class of each shape, and its words."""
    return Markup('<ul class="legend">{}</ul>').format(
        Markup("").join(
            Markup('<li><svg viewBox="0 0 12 12" aria-hidden="true">{}</svg>{}</li>').format(
                _key(kind), words
            )
            for kind, words in items
        )
    )


KEYS = {
    "late": '<path class="late" d="M6 0v12"/>',
    "fan": '<path class="fan" d="M0 6 12 0v12z"/>',
    "below": '<path class="failed" d="M0 2h12L6 11z"/>',
    "thin": '<path class="released" d="M0 4h12v4H0z"/>',
    "load": '<path class="load" d="M0 4h12v4H0z"/>',
    "lease": '<path class="lease" d="M0 2h12v8H0z"/>',
    "worst": '<path class="failed" d="M0 0h12v12H0z"/>',
    "idle": '<path class="open" d="M0 0h12v12H0z"/>',
}
"""The shapes of a legend that are more than a square of their class."""


def _key(kind: str) -> Markup:
    return Markup(KEYS.get(kind, f'<path class="{kind}" d="M0 0h12v12H0z"/>'))  # noqa: S704 - constants
