"""A function for the function engine: a list of row dicts in, as many dicts out."""

from typing import Any


def shout(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The text of each row in capitals, and how many words it has."""
    return [{"loud": row["text"].upper(), "words": len(row["text"].split())} for row in rows]
