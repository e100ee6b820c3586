"""Rules for support tickets: which team, which rules matched, how urgent."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np


class Router:
    """Made once a process: the table is read and its patterns are compiled here, not per batch."""

    def __init__(self, rules: str, urgent_words: list[str]) -> None:
        with (Path(__file__).parent / rules).open(newline="") as file:
            table = list(csv.DictReader(file))
        self._rules = [(row["team"], re.compile(row["pattern"], re.IGNORECASE)) for row in table]
        self._urgent = set(urgent_words)

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One dict of columns for each row."""
        return [self._one(str(row["text"])) for row in rows]

    def _one(self, text: str) -> dict[str, Any]:
        found = [(team, match[0]) for team, rule in self._rules for match in rule.finditer(text)]
        words = re.findall(r"\w+", text.lower())
        exclamations = text.count("!")
        urgency = np.float32(len(self._urgent & set(words)) + 0.5 * exclamations)
        return {
            "team": found[0][0] if found else "front desk",
            "matched": [word for _, word in found],
            "urgency": urgency,
            "counts": {"words": len(words), "exclamations": exclamations},
        }
