"""Callables for benchmarks of everything but the model."""

from typing import Any


def echo(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives each row's text back."""
    return [{"echoed": row["text"]} for row in rows]
