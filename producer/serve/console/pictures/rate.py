"""Rows a second over the life of a job, failures below the line; the forecast as a fan; the deadline. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from nightshift.common.text import counted, plural, rate
from nightshift.producer.serve.console.pictures import scales, series
from nightshift.producer.serve.console.pictures.forecast import Fan
from nightshift.producer.serve.console.pictures.scales import Span
from nightshift.producer.serve.console.pictures.series import Point

TOP, ABOVE = 18, 130
"""Height of the line of words, and of the scale, in pixels."""

OPENING = 0.25
"""After this part of its length the fan is open."""

LEAST_BELOW, LEAST_FAILED = 12, 3
"""Least height of the part below the line, and of a failure in it, in pixels."""


class Rows(NamedTuple):
    """Current row counts of a job."""

    total: int
    done: int
    failed: int


def draw(
    points: Sequence[Point],
    span: Span,
    now: float,
    fan: Fan | None,
    finish_by: float | None,
    rows: Rows,
) -> Markup:
    """The picture, from the first point to the end of `span`, which may lie behind `now`; nothing before the first row."""
    if not (points[-1].done or points[-1].failed):
        return Markup("")
    past = Span(span.begin, min(now, span.end))
    edges = past.edges(scales.pieces(points))
    done, failed = (series.rates(points, column, edges) for column in ("done", "failed"))
    most = scales.ceiling(max([*done, fan.fast if fan else 0.0]))
    below = _below(failed, most)
    xs = [span.x(edge) for edge in edges]
    areas = [_path("done", scales.steps([ABOVE * rate / most for rate in done], xs, ABOVE))]
    if any(failed):
        heights = [-max(ABOVE * rate / most, LEAST_FAILED) if rate else 0.0 for rate in failed]
        areas.append(_path("failed", scales.steps(heights, xs, ABOVE)))
    if fan is not None:
        areas.append(_fan(fan, span, most))
    height = TOP + ABOVE + below
    return Markup(
        '<svg class="plot" role="img" width="100%" height="{height}" aria-label="{label}">{grid}'
        '<line class="axis" x1="0" x2="100%" y1="{line}" y2="{line}"/>{areas}{scale}{marks}</svg>{clock}{legend}'
    ).format(
        height=height,
        label=description(rows, done),
        grid=scales.grid(TOP, ABOVE),
        scale=scales.scale(most, TOP, ABOVE, "rows/s"),
        areas=scales.inner(Markup("").join(areas), TOP, ABOVE + below),
        line=TOP + ABOVE,
        marks=_marks(span, now, finish_by, height),
        clock=scales.clock(span),
        legend=scales.legend(_legend(points, fan, finish_by)),
    )


def description(rows: Rows, done: Sequence[float]) -> str:
    """Return the text alternative of the chart."""
    text = (
        f"Rows a second: {rate(max(done))} at most, {rate(done[-1])} last; "
        f"{rows.done:,} of {counted(rows.total, 'row')} {plural(rows.total, 'is', 'are')} done"
    )
    return f"{text}, {rows.failed:,} failed" if rows.failed else text


def _below(failed: Sequence[float], most: float) -> int:
    if not any(failed):
        return 2
    return min(max(round(ABOVE * max(failed) / most) + 4, LEAST_BELOW), ABOVE)


def _fan(fan: Fan, span: Span, most: float) -> Markup:
    """The rate now opens to the fast and the slow one, and closes from the fast to the slow end."""
    shape = " ".join(
        f"{span.x(at)} {ABOVE * (1 - rate / most):.1f}" for at, rate in outline(fan, span.end)
    )
    middle = f"M{span.x(fan.now)} {ABOVE * (1 - fan.rate / most):.1f}H{span.x(fan.end)}"
    return _path("fan", f"M{shape}z") + _path("likely", middle)


def outline(fan: Fan, edge: float) -> list[tuple[float, float]]:
    """The fan as corners, moments with rates, cut off at `edge`."""
    slow_end = math.inf if fan.slow_end is None else fan.slow_end
    opened = fan.now + OPENING * (min(fan.fast_end, edge) - fan.now)
    corners = [(fan.now, fan.rate), (opened, fan.fast), (min(fan.fast_end, edge), fan.fast)]
    if fan.fast_end < edge < slow_end:
        share = (edge - fan.fast_end) / (slow_end - fan.fast_end)
        corners.append((edge, fan.fast + share * (fan.slow - fan.fast)))
    return [*corners, (min(slow_end, edge), fan.slow), (opened, fan.slow)]


def _marks(span: Span, now: float, finish_by: float | None, height: int) -> Markup:
    marks = []
    if now < span.end:
        marks.append(("now", now, "now"))
    if finish_by is not None and span.begin <= finish_by <= span.end:
        marks.append(("late", finish_by, "deadline"))
    return Markup("").join(
        Markup(
            '<line class="{kind}" x1="{x}" x2="{x}" y1="14" y2="{height}"/>'
            '<text class="{anchor}" x="{x}" y="11">{word}</text>'
        ).format(
            kind=kind,
            x=span.percent(at),
            height=height,
            word=word,
            anchor="last" if span.share(at) > 0.85 else "mid",
        )
        for kind, at, word in marks
    )


def _legend(
    points: Sequence[Point], fan: Fan | None, finish_by: float | None
) -> list[tuple[str, object]]:
    items: list[tuple[str, object]] = [("done", "answers")]
    if points[-1].failed:
        items.append(("below", "failures"))
    if fan is not None:
        items.append(("fan", _ends(fan)))
    if finish_by is not None:
        items.append(("late", Markup("deadline {}").format(scales.moment(finish_by))))
    return items


def _ends(fan: Fan) -> Markup:
    if fan.slow_end is None:
        return Markup("ends about {}, not before {} by the rates of late").format(
            scales.moment(fan.end), scales.moment(fan.fast_end)
        )
    return Markup("ends about {}, between {} and {} by the rates of late").format(
        scales.moment(fan.end), scales.moment(fan.fast_end), scales.moment(fan.slow_end)
    )


def _path(kind: str, drawn: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(kind, drawn)
