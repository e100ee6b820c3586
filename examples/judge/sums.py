"""Two functions: one that answers, and one that judges the answers."""

import re
from typing import Any

Rows = list[dict[str, Any]]


def add(rows: Rows) -> Rows:
    """The sum digit by digit, without the carry; raises for what is no sum."""
    return [{"answer": _without_carry(*_numbers(row["question"]))} for row in rows]


def check(rows: Rows) -> Rows:
    """Score 1 for a right answer, else 0; a judge sees the columns of input and output."""
    off = [row["answer"] - sum(_numbers(row["question"])) for row in rows]
    return [{"score": float(each == 0), "off_by": each} for each in off]


def _numbers(question: str) -> tuple[int, int]:
    found = re.fullmatch(r"What is (\d+) plus (\d+)\?", question)
    if found is None:
        raise ValueError(f"this is no sum: {question}")
    return int(found[1]), int(found[2])


def _without_carry(one: int, other: int) -> int:
    answer, place = 0, 1
    while one or other:
        answer += (one % 10 + other % 10) % 10 * place
        one, other, place = one // 10, other // 10, place * 10
    return answer
