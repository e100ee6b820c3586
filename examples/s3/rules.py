"""A function over documents: a list of row dicts in, as many dicts out."""

from typing import Any


def count(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many words each text has, and its longest one."""
    words = [row["text"].split() for row in rows]
    return [{"words": len(each), "longest": max(each, key=len)} for each in words]
