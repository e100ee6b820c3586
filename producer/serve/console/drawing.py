"""Small pictures as inline SVG: bars, sparklines; and images of rows. Pure; sizes in pixels."""

import base64
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

BAR_WIDTH, BAR_HEIGHT = 160, 8
SPARK_WIDTH, SPARK_HEIGHT = 96, 22

MOST_IMAGE_BYTES = 512 * 1024
"""Largest image that a page shows."""

KINDS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF8": "gif",
    b"RIFF": "webp",
}
"""First bytes of the images that a page shows. SVG is none: it may hold scripts."""

DATA_URI = re.compile(r"data:image/[a-z.+-]{1,20};base64,([A-Za-z0-9+/=\s]+)", re.ASCII)


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


def image(value: Any) -> Markup | None:
    """The image that a value holds, as bytes or as a data: URI; None for what is no image of KINDS, or is
    larger than MOST_IMAGE_BYTES.
    """
    if isinstance(value, str):
        found = DATA_URI.fullmatch(value) if len(value) < 2 * MOST_IMAGE_BYTES else None
        if found is None:
            return None
        try:
            value = base64.b64decode(found[1])
        except ValueError:
            return None
    if not isinstance(value, bytes) or len(value) > MOST_IMAGE_BYTES:
        return None
    kind = next((kind for begin, kind in KINDS.items() if value.startswith(begin)), None)
    if kind is None or (kind == "webp" and value[8:12] != b"WEBP"):
        return None
    data = base64.b64encode(value).decode("ascii")
    return Markup(
        '<img class="picture" alt="image of {bytes:,} bytes" src="data:image/{kind};base64,{data}">'
    ).format(bytes=len(value), kind=kind, data=data)
