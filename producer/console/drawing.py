"""Small pictures as inline SVG: bars and sparklines. Pure; sizes in pixels."""

from collections.abc import Sequence

from markupsafe import Markup

BAR_WIDTH, BAR_HEIGHT = 160, 8
SPARK_WIDTH, SPARK_HEIGHT = 96, 22


def bar(done: int, failed: int, total: int) -> Markup:
    """A bar of rows with an answer, and behind them rows with an error. Rounded down: a bar that is full
    is a job that is over.
    """
    wide, red = (BAR_WIDTH * rows // total if total else 0 for rows in (done, failed))
    red = max(red, 2) if failed else 0
    percent = 100 * (done + failed) // total if total else 0
    return Markup(
        '<svg class="bar" role="img" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'preserveAspectRatio="none" aria-label="{percent} %">'
        '<rect class="track" width="{w}" height="{h}" rx="4"/>'
        '<rect class="done" width="{done}" height="{h}" rx="4"/>'
        '<rect class="failed" x="{at}" width="{red}" height="{h}" rx="1"/></svg>'
    ).format(
        w=BAR_WIDTH,
        h=BAR_HEIGHT,
        percent=percent,
        done=wide,
        at=min(wide, BAR_WIDTH - red),
        red=red,
    )


def sparkline(values: Sequence[float]) -> Markup:
    """A line over values of even distance, the newest on the right; nothing for fewer than two."""
    if len(values) < 2:
        return Markup("")
    most = max(values) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * value / most:.1f}"
        for at, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" aria-hidden="true" viewBox="0 0 {w} {h}" width="{w}" height="{h}">'
        '<polyline points="{points}"/></svg>'
    ).format(w=SPARK_WIDTH, h=SPARK_HEIGHT, points=points)
