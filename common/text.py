"""What text may hold, and how it is shown.

Postgres holds no NUL, and UTF-8 no half of a character (a lone surrogate). A terminal obeys control
characters. Each of the three is decided here alone.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import islice
from typing import Any

MARK = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character that was taken out of a text."""

MESSAGE_CHARACTERS = 500
"""Longest message of an error that is kept, in a part and in the ledger alike."""

CHARACTERS_A_TOKEN = 4
"""A rule of thumb for English text; other languages and code take more tokens."""

LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that JSON may hold as they are and at which `str.splitlines` ends a line, with their escapes."""

HALF_CHARACTER = "holds half of a character (a lone surrogate)"

_SURROGATE = re.compile("[\ud800-\udfff]")

# Control characters except tab and newline, characters that change the direction of writing, and half
# characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def has_half_characters(text: str) -> bool:
    """True for a text that UTF-8 cannot hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def unstorable(text: str) -> str | None:
    """Why Postgres or UTF-8 cannot hold the text, as a phrase; None where both can."""
    if "\x00" in text:
        return "holds a NUL character, which nothing here can keep"
    return HALF_CHARACTER if has_half_characters(text) else None


def plural(count: int, one: str, many: str) -> str:
    """The word for so many: `plural(count, "waits", "wait")`."""
    return one if count == 1 else many


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The words that propose the one of `names` that is written like a wrong `name`; empty where none is."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def counted(count: int, noun: str, many: str = "") -> str:
    """A number of things with their noun: "1 row", "2,000 rows". The plural has an s, or is `many`."""
    return f"{count:,} {plural(count, noun, many or noun + 's')}"


def counted_batches(count: int) -> str:
    """The same of batches, whose plural is another."""
    return counted(count, "batch", "batches")


def left_out_rows(rows: int) -> str:
    """What is said of so many rows that do not match the condition of a job."""
    return f"{counted(rows, 'row')} left out by input.where"


def escaped(text: str) -> str:
    """The text with NULs and half characters written as escapes."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def json_line(text: str) -> str:
    """JSON without a newline as one line for every reader: with escapes for LINE_ENDS, which stand in strings
    alone. JSON itself wants the others escaped (RFC 8259, chapter 7).
    """
    if text.isascii():  # costs nothing
        return text
    for end, escape in LINE_ENDS.items():
        if end in text:
            text = text.replace(end, escape)
    return text


def kept_message(message: str) -> str:
    """An error's message as parts and ledger keep it: escaped, and cut to 500 characters."""
    text = escaped(message)
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    return text[: MESSAGE_CHARACTERS - 1] + "…"


def whole_characters(text: str) -> str:
    """The text with U+FFFD in the place of each half character."""
    if text.isascii() or not has_half_characters(text):
        return text
    return _SURROGATE.sub(MARK, text)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested dicts, lists and tuples with `change` applied to each key and each value in them;
    tuples become lists. ValueError where two keys of a dict become one.
    """
    if isinstance(value, dict):
        changed = {map_leaves(key, change): map_leaves(each, change) for key, each in value.items()}
        if len(changed) < len(value):
            raise ValueError("two keys of an object become one")
        return changed
    if isinstance(value, (list, tuple)):
        return [map_leaves(each, change) for each in value]
    return change(value)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dicts are nested in each other beyond so many levels."""
    layer = [value]
    for _ in range(levels + 1):
        nested = [each for each in layer if isinstance(each, dict | list)]
        if not nested:
            return False
        layer = [
            one for each in nested for one in (each.values() if isinstance(each, dict) else each)
        ]
    return True


def storable(value: Any) -> Any:
    """Nested values with each text escaped that Postgres cannot hold, for its JSON."""
    return map_leaves(value, lambda leaf: escaped(leaf) if isinstance(leaf, str) else leaf)


def printable(text: str) -> str:
    """The text with a mark in the place of each character that a terminal would obey."""
    return text if text.isprintable() else _STEERING.sub(MARK, text)


def one_line(text: str) -> str:
    """The same on one line."""
    return printable(" ".join(text.split("\n")))


def money(value: float | Decimal) -> str:
    """An amount without its currency, with two digits that say something, six at most."""
    amount = float(value)
    digits = 2 if abs(amount) >= 1 or not amount else 1 - math.floor(math.log10(abs(amount)))
    return f"{amount:,.{min(6, digits)}f}"


def rate(value: float | None) -> str:
    """Rows a second, with a digit behind the point below 100; a dash where unknown."""
    if value is None:
        return "—"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """The two largest units of a time: "2 d 3 h", "3 h 04 min", "5 min 20 s", "12 s"; a dash where unknown."""
    if seconds is None:
        return "—"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days:,} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def first_few(values: Iterable[object], most: int = 5) -> str:
    """The first few of many values, for a sentence."""
    iterator = iter(values)
    listed = [str(value) for value in islice(iterator, most)]
    left = sum(1 for _ in iterator)
    return ", ".join(listed) + (f" and {left:,} more" if left else "")
