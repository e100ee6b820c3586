"""Lists as GitHub reads them (CommonMark), written as Python-Markdown reads them.

CommonMark indents what belongs to an item as far as its text, by 2 or 3 columns, and a list may follow a line of a
paragraph. Python-Markdown wants 4 columns and an empty line.
"""

import re
from typing import Any

from markdown_it import MarkdownIt

COLUMNS = 4

MARKER = re.compile(r"\s*((?:[-*+]|\d+[.)])\s+)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for each page."""
    return rewritten(markdown)


def rewritten(markdown: str) -> str:
    """The same text with wider lists."""
    lines = markdown.split("\n")
    wider = [0] * len(lines)
    before: set[int] = set()
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown):
        if token.map is None or token.type not in {
            "list_item_open",
            "bullet_list_open",
            "ordered_list_open",
        }:
            continue
        first, end = token.map
        if token.type != "list_item_open":
            if token.level == 0:
                before.add(first)
        elif (marker := MARKER.match(lines[first])) is not None:
            for line in range(first + 1, end):
                wider[line] += max(COLUMNS - len(marker[1]), 0)
            if not all(line.strip() for line in lines[first:end]):
                before.add(end)
    out: list[str] = []
    for number, line in enumerate(lines):
        if number in before and out and out[-1].strip():
            out.append("")
        out.append(" " * wider[number] + line if line.strip() else line)
    return "\n".join(out)
