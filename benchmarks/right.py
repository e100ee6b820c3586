"""A judge of labels: whether an answer is the label that its row has."""

from typing import Any


def check(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Score 1 for the right label, else 0."""
    return [{"score": float(_said(row) == row["label"])} for row in rows]


def _said(row: dict[str, Any]) -> str:
    """The label of an answer, which may be JSON."""
    parsed: dict[str, Any] | None = row.get("parsed")
    return str(row["output"] if parsed is None else parsed["sentiment"])
