"""Numbers in the body of a request which no engine can have."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

MOST, LEAST = 2**63 - 1, -(2**63)
"""Integers that the libraries of engines, and the messages between their processes, can hold."""

CONTENT = frozenset(
    {
        "messages",
        "metadata",
        "tools",
        "functions",
        "response_format",
        "text",
        "chat_template_kwargs",
    }
)
"""Members that hold what the model reads and schemas: their numbers are not ours to judge."""

COUNTS = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "n",
        "best_of",
        "seed",
    }
    | {"top_k", "top_logprobs", "dimensions", "truncate_prompt_tokens"}
)
"""Members that are integers: true is none, though Python takes it for 1."""


def refusal(body: Mapping[str, Any]) -> str | None:
    """Why a body can be sent to no engine, in a sentence; None where its numbers are ordinary ones."""
    for name, value in body.items():
        if name in COUNTS and isinstance(value, bool):
            return f"{name} is {str(value).lower()}, but must be a number"
        if name in CONTENT:
            continue
        for number in _numbers(value):
            if isinstance(number, float) and not math.isfinite(number):
                return f"{name} is {number}, but must be a finite number"
            if isinstance(number, int) and not LEAST <= number <= MOST:
                return f"{name} is {_short(number)}, beyond what 64 bits hold"
    return None


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers in a value as JSON has it; true and false are none."""
    values = [value]
    while values:
        each = values.pop()
        if isinstance(each, dict):
            values.extend(each.values())
        elif isinstance(each, list):
            values.extend(each)
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield each


def _short(number: int) -> str:
    text = str(number)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
