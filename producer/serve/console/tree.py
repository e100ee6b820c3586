"""JSON as a tree of details that open, bounded in depth, nodes and text. Pure; ids are those of the same place, so
that what is open stays open when a page is drawn anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nightshift.common.text import counted, whole_characters

MOST_DEPTH = 16
"""Levels that open."""

MOST_NODES = 500
"""Nodes that are drawn."""

MOST_LEAF = 4_096
"""Characters of a text in a tree."""

PREVIEW = 120
"""Characters of what a closed node shows of itself."""

EMPTY = Markup('<span class="none">empty text</span>')

NULL = Markup('<span class="none">null</span>')


@dataclass(slots=True)
class _Drawn:
    """How many nodes there are so far; `name` begins their ids."""

    name: str
    nodes: int = 0


def tree(value: Any, name: str) -> Markup:
    """Lists and mappings as details whose ids begin with `name`; anything else as text."""
    return _node(value, _Drawn(name), 0)


def leaf(value: Any) -> Markup:
    """A single value: a text as it is, empty text and null as such."""
    if value is None:
        return NULL
    if value == "" and isinstance(value, str):
        return EMPTY
    if isinstance(value, bytes):
        value = f"{counted(len(value), 'byte')}: {value[:32].hex(' ')}"
    if isinstance(value, bool):
        return Markup('<span class="word">{}</span>').format(str(value).lower())
    if isinstance(value, int | float):
        return Markup('<span class="number-value">{}</span>').format(str(value))
    text = whole_characters(str(value))
    left = len(text) - MOST_LEAF
    said = f"… and {counted(left, 'character')} more" if left > 0 else ""
    return Markup('<span class="text">{}{}</span>').format(text[:MOST_LEAF], said)


def preview(value: Any, most: int = PREVIEW) -> str:
    """A value in one line of at most so many characters; no more of it is looked at."""
    found = ""
    for piece in _pieces(value, MOST_DEPTH):
        found += piece
        if len(found) > most:
            return f"{whole_characters(found[: most - 1])}…"
    return whole_characters(found)


def _pieces(value: Any, depth: int) -> Iterable[str]:
    if isinstance(value, Mapping | list | tuple):
        opens, closes = ("{", "}") if isinstance(value, Mapping) else ("[", "]")
        yield opens
        for place, (key, each) in enumerate(_members(value)):
            yield ", " if place else ""
            yield f"{key}: " if isinstance(value, Mapping) else ""
            yield from _pieces(each, depth - 1) if depth else ("…",)
        yield closes
    elif isinstance(value, str):
        yield " ".join(value[: 2 * MOST_LEAF].split())
    elif isinstance(value, bytes):
        yield f"{counted(len(value), 'byte')}"
    else:
        yield (
            "null"
            if value is None
            else str(value).lower()
            if value in (True, False)
            else str(value)
        )


def _members(value: Mapping[Any, Any] | Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def _node(value: Any, drawn: _Drawn, depth: int) -> Markup:
    if not isinstance(value, Mapping | list | tuple):
        return leaf(value)
    if not value:
        return Markup('<span class="none">{}</span>').format(
            "no fields" if isinstance(value, Mapping) else "no items"
        )
    if depth == MOST_DEPTH:
        return Markup('<span class="none">deeper than {} levels: {}</span>').format(
            MOST_DEPTH, preview(value)
        )
    number, left = drawn.nodes, 0
    lines: list[Markup] = []
    for key, each in _members(value):
        if drawn.nodes >= MOST_NODES:
            left = len(value) - len(lines)
            break
        drawn.nodes += 1
        lines.append(
            Markup("<li><b>{}</b> {}</li>").format(
                whole_characters(str(key)[:PREVIEW]), _node(each, drawn, depth + 1)
            )
        )
    if left:
        lines.append(Markup('<li class="none">… and {:,} more</li>').format(left))
    said = f"{len(value):,} {'field' if isinstance(value, Mapping) else 'item'}{'s' * (len(value) != 1)}"
    return Markup(
        '<details class="tree" id="{}-{}"><summary>{} <span class="preview">{}</span></summary>'
        "<ul>{}</ul></details>"
    ).format(drawn.name, number, said, preview(value), Markup("").join(lines))
