"""A function over tickets: which team answers each, and whether it is urgent."""

import json
from pathlib import Path
from typing import Any

TEAMS = Path(__file__).with_name("teams.json")


def route(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A product that teams.json does not name is an error of its row."""
    teams = json.loads(TEAMS.read_text())
    return [{"team": teams[row["product"]], "urgent": _is_urgent(row["text"])} for row in rows]


def _is_urgent(text: str) -> bool:
    return "!" in text or text.lower().startswith("urgent")


def answer(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the team says at once."""
    return [{"answer": f"{row['ticket']}: {row['team']} calls you back."} for row in rows]
