"""Tokens a second as a stacked area: in, from a cache, out, thought. Pure."""

from collections.abc import Sequence

from markupsafe import Markup

from nightshift.producer.pictures import series
from nightshift.producer.pictures.series import Point
from nightshift.producer.serve.console.pictures import scales
from nightshift.producer.serve.console.pictures.scales import Span

TOP, HEIGHT = 4, 110
"""In pixels."""

KINDS = (
    ("tokens-in", "in", "prompt", "cached"),
    ("tokens-cached", "in, from a cache", "cached", None),
    ("tokens-out", "out", "output", "thought"),
    ("tokens-thought", "out, thought before the answer", "thought", None),
)
"""Class, words and column of each kind from the bottom up, and the kind that is a part of its column."""


def draw(points: Sequence[Point], span: Span) -> Markup:
    """The picture; nothing where no token was counted."""
    if not points or not (points[-1].prompt or points[-1].output):
        return Markup("")
    edges = span.edges(scales.pieces(points))
    lower = [0.0] * (len(edges) - 1)
    layers = []
    for kind, _, column, part in KINDS:
        rates = series.rates(points, column, edges)
        less = series.rates(points, part, edges) if part else [0.0] * len(rates)
        upper = [
            low + max(rate - cut, 0.0) for low, rate, cut in zip(lower, rates, less, strict=True)
        ]
        layers.append((kind, lower, upper))
        lower = upper
    most = scales.ceiling(max(lower))
    xs = [span.x(edge) for edge in edges]

    def scaled(values: Sequence[float]) -> list[float]:
        return [HEIGHT * value / most for value in values]

    areas = Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(
            kind, scales.stacked(scaled(low), scaled(high), xs, HEIGHT)
        )
        for kind, low, high in layers
        if any(high[at] > low[at] for at in range(len(low)))
    )
    return Markup(
        '<svg class="plot" role="img" width="100%" height="{height}" aria-label="{said}">'
        '{grid}<line class="axis" x1="0" x2="100%" y1="{line}" y2="{line}"/>{areas}{scale}</svg>{clock}{legend}'
    ).format(
        height=TOP + HEIGHT + 2,
        line=TOP + HEIGHT,
        said=f"Tokens a second: {'; '.join(_totals(points[-1], full=True))}",
        grid=scales.grid(TOP, HEIGHT),
        scale=scales.scale(most, TOP, HEIGHT, "tokens/s"),
        areas=scales.inner(areas, TOP, HEIGHT),
        clock=scales.clock(span),
        legend=scales.legend(
            [
                (kind, total)
                for (kind, *_), total in zip(KINDS, _totals(points[-1]), strict=True)
                if total
            ]
        ),
    )


def _totals(last: Point, *, full: bool = False) -> list[str]:
    """What there was of each kind; nothing for a kind that there was not, or that alone where not `full`."""
    found = []
    for _, words, column, part in KINDS:
        count = getattr(last, column) - (getattr(last, part) if part else 0)
        found.append(f"{max(count, 0):,} {words}" if count > 0 else "")
    return [each for each in found if each] if full else found
