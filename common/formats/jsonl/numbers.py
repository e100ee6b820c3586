"""Numbers of JSON that no double holds: they stay the text that the file has."""

import json
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

SURE_DIGITS = 17
"""A number of at most so many digits is read as the nearest double: writers print doubles so."""

_SURE_LENGTH = SURE_DIGITS + 1
"""Length of a text that surely has no more digits: one of its characters is a point or the letter of an exponent."""


@dataclass(frozen=True, slots=True)
class NumberText:
    """A number that no double holds, as the file has it. `json.dumps` refuses it, so none is written by chance."""

    text: str


def exact_number(text: str) -> float | NumberText:
    """Return the double that a fraction or a number with an exponent stands for, or its text if no double holds it.

    A double holds a number of more than 17 digits if it is that double, rounded to these digits: so
    0.10000000000000000555, as C prints 0.1, is held, and 3.14159265358979323846 is not. A number that would
    become infinite is not held, nor one that would become zero.
    """
    value = float(text)
    is_ordinary = value != 0.0 and value - value == 0.0  # neither zero nor infinite
    if is_ordinary and (len(text) <= _SURE_LENGTH or len(text.lstrip("-0.")) <= SURE_DIGITS):
        return value
    return value if _is_held(text, value) else NumberText(text)


def _is_held(text: str, value: float) -> bool:
    digits = text.lower().partition("e")[0].replace(".", "").lstrip("-0")
    if value - value != 0.0:
        return False
    if not value:
        return not digits
    if len(digits.rstrip("0")) <= SURE_DIGITS:
        return True
    return Context(prec=len(digits)).plus(Decimal(value)) == Decimal(text)


def json_text(value: Any) -> str:
    """A parsed value as JSON, with the numbers that no double holds as the file has them."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:  # of a NumberText
        return _with_numbers(value)


def _with_numbers(value: Any) -> str:
    match value:
        case NumberText():
            return value.text
        case list():
            return f"[{', '.join(map(_with_numbers, value))}]"
        case dict():
            return f"{{{', '.join(f'{json_text(key)}: {_with_numbers(each)}' for key, each in value.items())}}}"
    return json_text(value)
