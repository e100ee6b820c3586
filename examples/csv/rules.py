"""A function over orders: a list of row dicts in, as many dicts out."""

from typing import Any


def describe(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each order is, in one line."""
    return [{"line": _line(row)} for row in rows]


def _line(row: dict[str, Any]) -> str:
    where = f"{row['zip']}, {row['country']}" if "country" in row else row["zip"]
    amount = "no amount" if row["amount"] is None else f"{row['amount']:.2f}"
    return f"{row['order']}: {row['item']} to {where}, {amount}"
