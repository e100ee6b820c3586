"""The fleet as a picture: a cell a slot, the GPUs below it, the workers of a pool in one bar. Pure; in pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

CELL, GAP, A_LINE = 20, 4, 8
"""Side of a cell, the room between two, and cells in a line."""

METER, METERS = 3, 9
"""Height of the bar of a GPU's use or memory, and of both with the room above them."""

BAR_WIDTH, BAR_HEIGHT = 320, 14

LEAST = 3
"""Width of the narrowest part of a bar."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot: what it does, the letter of its engine, what is said of it on hover. `busy` and `memory` are shares of
    its GPUs, None where no driver told.
    """

    word: str
    letter: str = ""
    said: str = ""
    cordoned: bool = False
    busy: float | None = None
    memory: float | None = None


SHAPES = {
    "at work": "M{x} {mid}h20",
    "idle": "M{x} {y}h20v20h-20z",
    "loading": "M{x} {y}h20v20h-20zm0 20h20v-5h-20z",
    "draining": "M{x} {y}h13l7 7v13h-20z",
    "lost": "M{x} {y}h20v20h-20zl20 20m0 -20l-20 20",
    "free": "M{x} {y}h20v20h-20z",
}
"""What a slot does, from the left upper corner of its cell; at work is a line as thick as the cell."""

CORDON = "M{x} {y}v20m20 0v-20"


def _class(word: str) -> str:
    return word.replace(" ", "-")


def cells(slots: Sequence[Cell], label: str, *, hover: bool = True) -> Markup:
    """The slots of a machine, in lines. Cells that do the same are one path, so that a large fleet is a small page;
    with `hover` each says what it is when a pointer is over it.
    """
    has_gpus = any(slot.busy is not None or slot.memory is not None for slot in slots)
    pitch, line = CELL + GAP, CELL + GAP + (METERS if has_gpus else 0)
    at = [(1 + pitch * (n % A_LINE), 1 + line * (n // A_LINE)) for n in range(len(slots))]
    width = pitch * min(A_LINE, len(slots)) - GAP + 2
    height = line * -(-len(slots) // A_LINE) - GAP + 2
    parts = [
        Markup(
            '<svg class="cells" role="img" aria-label="{}" viewBox="0 0 {w} {h}" width="{w}" height="{h}">'
        ).format(label, w=width, h=height)
    ]
    outlines: dict[str, list[str]] = {}
    letters: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for slot, (x, y) in zip(slots, at, strict=True):
        outlines.setdefault(_class(slot.word), []).append(
            SHAPES[slot.word].format(x=x, y=y, mid=y + CELL // 2)
        )
        if slot.cordoned:
            outlines.setdefault("cordoned", []).append(CORDON.format(x=x, y=y))
        if slot.letter:
            letters.setdefault((_class(slot.word), y + 14), []).append((x + 10, slot.letter))
        for kind, share in (("busy", slot.busy), ("memory", slot.memory)):
            if share is not None:
                below = y + CELL + (4 if kind == "busy" else 8)
                outlines.setdefault(kind, []).append(f"M{x} {below}h{max(1, round(CELL * share))}")
    if has_gpus:
        tops = sorted({y + CELL for _, y in at})
        lines = (f"M1 {top + below}h{width - 2}" for top in tops for below in (4, 8))
        outlines = {"meter": list(lines), **outlines}
    parts += [
        Markup('<path class="{}" d="{}"/>').format(kind, "".join(paths))
        for kind, paths in outlines.items()
    ]
    parts += [_letters(kind, y, own) for (kind, y), own in letters.items()]
    if hover:
        parts += [
            Markup('<rect x="{}" y="{}" width="20" height="20"><title>{}</title></rect>').format(
                x, y, slot.said
            )
            for slot, (x, y) in zip(slots, at, strict=True)
        ]
    return Markup("").join([*parts, Markup("</svg>")])


def _letters(kind: str, y: int, own: Sequence[tuple[int, str]]) -> Markup:
    """Letters of a line in one element: each has a place of its own."""
    return Markup('<text class="on-{}" x="{}" y="{}">{}</text>').format(
        kind, " ".join(str(x) for x, _ in own), y, "".join(letter for _, letter in own)
    )


def mark(word: str) -> Markup:
    """One cell, for a legend: the word stands beside it."""
    path = SHAPES[word] if word in SHAPES else SHAPES["idle"] + CORDON
    return Markup(
        '<svg class="cells" aria-hidden="true" viewBox="0 0 22 22" width="14" height="14">'
        '<path class="{}" d="{}"/></svg>'
    ).format(_class(word), path.format(x=1, y=1, mid=11))


PARTS = ("at work", "idle", "loading", "draining", "lost")
"""Workers in a bar of a pool, from the left."""


def pool_bar(words: Mapping[str, int], wanted: int, most: int, label: str) -> Markup:
    """The workers of a pool by what they do, and as an outline those that are wanted beyond them. `most` workers fill
    the bar, the same number in the bar of each pool.
    """
    unit = BAR_WIDTH / max(most, 1)
    left = 0.0
    drawn = []
    for word in PARTS:
        if words.get(word):
            width = max(LEAST, unit * words[word])
            drawn.append((_class(word), left, width))
            left += width
    living = sum(words.get(word, 0) for word in PARTS[:3])
    if wanted > living:
        drawn.append(("wanted", left, max(LEAST, unit * (wanted - living))))
    scale = min(1.0, BAR_WIDTH / max(1.0, sum(width for _, _, width in drawn)))
    parts = Markup("").join(
        Markup('<rect class="{}" x="{:.1f}" y="1" width="{:.1f}" height="{}"/>').format(
            kind, 1 + x * scale, max(1.0, width * scale - 1), BAR_HEIGHT
        )
        for kind, x, width in drawn
    )
    return Markup(
        '<svg class="pool" role="img" aria-label="{}" viewBox="0 0 {w} {h}" width="{w}" height="{h}">'
        '<rect class="ground" x="1" y="1" width="{inner}" height="{bar}"/>{}</svg>'
    ).format(label, parts, w=BAR_WIDTH + 2, h=BAR_HEIGHT + 2, inner=BAR_WIDTH, bar=BAR_HEIGHT)
