"""Reads prices out of lines of text; a stand-in for a model that costs money."""

import re
import time
from typing import Any

AMOUNT = re.compile(r"(\d+(?:[.,]\d{2})?)\s*(EUR|USD)")

SECONDS_A_CHARACTER = 0.00005


def prices(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The amount and its currency; ValueError for a line that has none."""
    return [_price(row["text"]) for row in rows]


def _price(line: str) -> dict[str, Any]:
    time.sleep(SECONDS_A_CHARACTER * len(line))  # longer lines take longer, as with a model
    found = AMOUNT.search(line)
    if found is None:
        raise ValueError("no amount in this line")
    return {"amount": float(found[1].replace(",", ".")), "currency": found[2]}
