"""Callables for benchmarks of everything but the model."""

from typing import Any


def echo(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the text of each row."""
    return [{"echoed": row["text"]} for row in rows]
