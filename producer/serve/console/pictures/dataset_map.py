"""A map of the dataset: a cell a piece of it, filled by what became of its rows. Pure."""

from collections.abc import Sequence

from markupsafe import Markup

from nightshift.common.text import counted
from nightshift.producer.serve.console.pictures import scales

COLUMNS = 40
"""Cells of a line; a cell is a square of SIDE with a gap."""

SIDE, STEP = 10, 12

SCALE = 1.2
"""How large the map is on a wide page; on a narrow one it is as wide as the page."""

CLASSES = {"corner": "failed corner"}

LEAST = 2
"""Least height of a part of a cell that has a row."""


def draw(width: int, cells: Sequence[Sequence[int]]) -> Markup:
    """The map; nothing where there is no batch. A cell has its number, its rows, those done, failed and at work, and
    stands for `width` batches of the plan.
    """
    if not cells:
        return Markup("")
    columns = min(COLUMNS, cells[-1][0] + 1)
    lines = cells[-1][0] // columns + 1
    paths: dict[str, list[str]] = {
        "open": [],
        "done": [],
        "failed": [],
        "working": [],
        "corner": [],
    }
    titles = []
    for number, rows, done, failed, at_work in cells:
        x, y = STEP * (number % columns), STEP * (number // columns)
        _fill(paths, x, y, rows, done, failed, at_work)
        if failed or done not in (0, rows):  # the rest shows all that there is to say
            titles.append(
                f'<path class="cell" d="M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"><title>'
                f"{_title(width, number, rows, done, failed, at_work)}</title></path>"
            )
    drawn = "".join(
        f'<path class="{CLASSES.get(kind, kind)}" d="{"".join(shapes)}"/>'
        for kind, shapes in paths.items()
        if shapes
    )
    sums = [sum(column) for column in zip(*cells, strict=True)][1:]
    return Markup(
        '<svg class="map" role="img" viewBox="0 0 {w} {h}" width="{wide}" aria-label="{said}">'
        "{drawn}</svg>{legend}"
    ).format(
        w=STEP * columns - 2,
        h=STEP * lines - 2,
        wide=round(SCALE * (STEP * columns - 2)),
        said=said(*sums),
        drawn=Markup(drawn + "".join(titles)),  # noqa: S704 - numbers alone
        legend=scales.legend(_legend(*sums)),
    )


def said(rows: int, done: int, failed: int, at_work: int) -> str:
    """The map in a sentence."""
    left = rows - done - failed - at_work
    return f"Map of the dataset: of {counted(rows, 'row')} {done:,} done, {failed:,} failed, {at_work:,} at work, {left:,} open"


def _fill(
    paths: dict[str, list[str]], x: int, y: int, rows: int, done: int, failed: int, at_work: int
) -> None:
    """Open as the ground; done from below; failed above that, and a corner, so that one row is seen; a square in the
    middle for work.
    """
    paths["open"].append(f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z")
    up = 0.0
    for kind, count in (("done", done), ("failed", failed)):
        if count:
            height = max(SIDE * count / rows, LEAST if kind == "failed" else 0)
            height = min(height, SIDE - up) or SIDE
            paths[kind].append(f"M{x} {y + SIDE - up - height:.3g}h{SIDE}v{height:.3g}h-{SIDE}z")
            up = min(up + height, SIDE)
    if failed:
        paths["corner"].append(f"M{x + SIDE - 5} {y}h5v5z")
    if at_work:
        paths["working"].append(f"M{x + 3} {y + 3}h4v4h-4z")


def _title(width: int, number: int, rows: int, done: int, failed: int, at_work: int) -> str:
    first = number * width
    which = f"batch {first:,}" if width == 1 else f"batches {first:,} to {first + width - 1:,}"
    counts = [
        f"{count:,} {word}"
        for count, word in ((done, "done"), (failed, "failed"), (at_work, "at work"))
        if count
    ]
    return f"{which}: {', '.join(counts) or 'open'} of {rows:,}"


def _legend(rows: int, done: int, failed: int, at_work: int) -> list[tuple[str, object]]:
    left = rows - done - failed - at_work
    items = [
        ("done", f"{counted(done, 'row')} done", done),
        ("corner", f"{failed:,} failed", failed),
        ("dot", f"{at_work:,} at work", at_work),
        ("idle", f"{left:,} open", left),
    ]
    found: list[tuple[str, object]] = [(kind, words) for kind, words, count in items if count]
    return found
