"""Tokens a second as a stacked area: in, out. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from nightshift.producer.serve.console.pictures import scales, series
from nightshift.producer.serve.console.pictures.scales import Span
from nightshift.producer.serve.console.pictures.series import Point

TOP, HEIGHT = 4, 110
"""In pixels."""

KINDS = (
    ("tokens-in", "in", "prompt"),
    ("tokens-out", "out", "output"),
)
"""CSS class, word and column of each kind, bottom first."""


class Totals(NamedTuple):
    """Total prompt and output tokens of a job."""

    prompt: int
    output: int


def draw(points: Sequence[Point], span: Span, totals: Totals) -> Markup:
    """The picture; nothing where no token was counted."""
    if not points or not (points[-1].prompt or points[-1].output):
        return Markup("")
    edges = span.edges(scales.pieces(points))
    lower = [0.0] * (len(edges) - 1)
    layers = []
    for kind, _, column in KINDS:
        rates = series.rates(points, column, edges)
        upper = [low + rate for low, rate in zip(lower, rates, strict=True)]
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
        '<svg class="plot" role="img" width="100%" height="{height}" aria-label="{label}">'
        '{grid}<line class="axis" x1="0" x2="100%" y1="{line}" y2="{line}"/>{areas}{scale}</svg>{clock}{legend}'
    ).format(
        height=TOP + HEIGHT + 2,
        line=TOP + HEIGHT,
        label=f"Tokens a second: {'; '.join(_words(totals).values())}",
        grid=scales.grid(TOP, HEIGHT),
        scale=scales.scale(most, TOP, HEIGHT, "tokens/s"),
        areas=scales.inner(areas, TOP, HEIGHT),
        clock=scales.clock(span),
        legend=scales.legend(_words(totals).items()),
    )


def _words(totals: Totals) -> Mapping[str, str]:
    """Return the number of tokens of each kind with its word, by CSS class; kinds without tokens are left out."""
    counts = {kind: (getattr(totals, column), word) for kind, word, column in KINDS}
    return {kind: f"{count:,} {word}" for kind, (count, word) in counts.items() if count}
