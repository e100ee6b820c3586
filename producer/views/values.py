"""Values of any column as text for people: vectors are cut, nested values are JSON."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

from nightshift.common.text import counted, printable

LIST_NUMBERS = 8
"""Numbers of a long vector that stand in the text."""


def value_text(value: Any, most: int) -> str:
    """The value as text of about `most` characters at most, safe for a terminal and a page."""
    text = _text(value)
    cut = text if len(text) <= most else f"{text[:most]}… ({counted(len(text), 'character')})"
    return printable(cut)


def as_json(value: Any) -> Any:
    """The `default` of `json.dumps`: text for a value that is no JSON type."""
    return value.isoformat() if isinstance(value, datetime | date | time) else _text(value)


def error_text(error: Mapping[str, Any] | None) -> str:
    """Kind and message; empty without an error."""
    return "" if error is None else printable(f"{error['kind']}: {error['message']}")


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes():
            return f"({counted(len(value), 'byte')})"
        case float():
            return f"{value:.6g}"
        case list() if len(value) > LIST_NUMBERS and _numbers(value):
            head = ", ".join(_text(number) for number in value[:LIST_NUMBERS])
            return f"[{head}, … {len(value):,} numbers]"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False, default=as_json)
        case _:
            return str(value)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(each, int | float) or each is None for each in values)
