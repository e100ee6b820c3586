"""Two functions of unequal weight."""

import hashlib
from typing import Any

ROUNDS = 200_000
"""Rounds of the key derivation: about 0.1 s of one core for each row."""


def count(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many letters a text has: next to nothing."""
    return [{"letters": sum(map(str.isalpha, row["text"]))} for row in rows]


def stretch(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A slow hash of a text: a core for as long as it takes."""
    return [
        {"key": hashlib.pbkdf2_hmac("sha256", row["text"].encode(), b"pools", ROUNDS).hex()}
        for row in rows
    ]
