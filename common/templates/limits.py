"""What each operator, call and filter of a template costs, and what is refused.

Each is charged to the budget of its rendering (`common/templates/budget.py`), before it runs, for
what it may make or scan.
"""

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from jinja2.exceptions import SecurityError

from nightshift.common.templates.budget import (
    ENTRY_UNITS,
    RENDER_UNITS,
    STEP_UNITS,
    charge,
    counted,
    weight,
)

NUMBER_BITS = 16_384
"""Longest whole number that a template may calculate."""

WIDEST_FIELD = 1000
"""Widest field of a format string."""

COPIED_CHARACTERS = 100
"""Characters that are copied, or looked at again, for one unit."""

CODECS = {"utf-8": "utf-8", "ascii": "ascii", "iso8859-1": "latin-1"}
"""Encodings of `encode` and `decode` by Python's own names: others take the square of the length, or
make much of little."""
_ON_CODEC_ERROR = ("strict", "ignore", "replace")
_WIDE_PERCENT = re.compile(rb"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d{4,}|\d*\.(?:\*|\d{4,}))")
_WIDE_BRACES = re.compile(rb"\{[^{}]+\{|\{[^{}]*:[^{}]*\d{4,}")
_WORD = re.compile(r"\S+")
_END_SIGNS = re.compile(r"[)>.,]{2,}")
_WIDE_TIME = re.compile(rb"%[^A-Za-z%]*\d{4,}")
_WIDE = {
    **dict.fromkeys(("format", "format_map"), _WIDE_BRACES),
    "strftime": _WIDE_TIME,
    "%": _WIDE_PERCENT,
}


def charged(name: str, run: Callable[..., Any], values: Sequence[Any], named: Any) -> Any:
    """Runs a filter or a method after charging the most that it may make or scan."""
    if name == "join":
        # The output of another filter has no size before it is made.
        values = [list(counted(one)) if isinstance(one, Iterator) else one for one in values]
    if name in ("dict", "Namespace", "fromkeys"):
        # Numbers with equal hashes take the square of the time: the clock is read on the way.
        read = [counted(one) if isinstance(one, list | tuple) else one for one in values[:2]]
        values = [*read, *values[2:]]
    if name in _WIDE:
        _refuse_wide(name, [*values, *named.values()])
    if name in ("encode", "decode"):
        _refuse_codec(*values, **named)
    cost = STEP_UNITS
    for value in (*values, *named.values()) if named else values:
        cost += weight(value)
    charge(cost)
    if name in _GROWTH and values:
        more = _GROWTH[name](*values, **named)
        charge(more)
        cost += more
    result = run(*values, **named)
    charge(weight(result) - cost)
    if isinstance(result, int) and result.bit_length() > NUMBER_BITS:
        raise SecurityError("it reads a number of thousands of digits")
    # Charged step by step, so that the clock is read while another filter takes what this one gives.
    return counted(result) if isinstance(result, Iterator) else result


# ---------------------------------------------------------------- what grows


def _text(value: Any) -> Any:
    """The text of a value, as Jinja makes it before a filter starts."""
    return value if isinstance(value, str | bytes | bytearray) else str(value)


def _times(units: int) -> Callable[..., int]:
    """A cost of `units` for each character, for filters that make more than one of a character."""
    return lambda *values, **_: (
        units * sum(len(value) for value in values if isinstance(value, str | bytes | bytearray))
    )


def _escaped(value: Any, indent: int | None = None, **_: Any) -> int:
    return weight(value) * (6 + (indent or 0))


def _quoted(value: Any, *_: Any, **__: Any) -> int:
    return 12 * weight(value)


def _padded(_value: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return abs(width) * ENTRY_UNITS


def _replaced(value: Any, old: Any = None, new: Any = "", *_: Any, **__: Any) -> int:
    # Dates have a method of this name.
    return int(_text(value).count(old)) * weight(new) if isinstance(old, str | bytes) else 0


def _lines(text: str) -> int:
    return 1 + sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))


def _indented(text: str, width: int | str = 4, *_: Any, **__: Any) -> int:
    return _lines(text) * (20 + 2 * (width if isinstance(width, int) else len(width)))


def _wrapped(
    text: str, width: int = 79, _long: Any = 1, by: str | None = None, *_: Any, **named: Any
) -> int:
    # Two lines that follow each other are together longer than one.
    lines = _lines(text) + 2 * len(text) // max(1, width)
    # Python copies the rest of a word that is longer than a line for each of its lines.
    copied = _squares(_WORD, text) // max(1, width) // COPIED_CHARACTERS
    return 10 * len(text) + lines * len(named.get("wrapstring", by) or "") + copied


def _urlized(value: Any, *_: Any, **__: Any) -> int:
    # Jinja looks for the end of a word from each of the signs that may stand there.
    return 20 * len(str(value)) + _squares(_END_SIGNS, str(value))


def _squares(pattern: re.Pattern[str], text: str) -> int:
    """The squares of the lengths of what a pattern finds, together."""
    if 10 * len(text) > RENDER_UNITS:
        return 0  # refused by its length
    return sum((found.end() - found.start()) ** 2 for found in pattern.finditer(text))


def _joined(first: Any, second: Any = "", *_: Any, **named: Any) -> int:
    """The filter takes what it joins first, the method last."""
    second = named.get("d", second)
    if isinstance(first, str | bytes) and not isinstance(second, str | bytes):
        first, second = second, first
    return len(first) * weight(second) + _times(20)(first, second)


def _formatted(text: Any, sign: Any, values: Iterable[Any]) -> int:
    """The cost of a format: one field for each sign; two signs together are no field."""
    fields = max(0, text.count(sign) - 2 * text.count(sign * 2))
    return int(fields) * (max(map(weight, values), default=0) + WIDEST_FIELD)


def _braces(text: Any, /, *values: Any, **named: Any) -> int:
    return _formatted(text, "{", [*values, *named.values()])


def _percents(text: Any, /, *values: Any, **named: Any) -> int:
    text = _text(text)
    return _formatted(text, "%" if isinstance(text, str) else b"%", [*values, *named.values()])


def _timed(_value: Any, text: Any = "", **named: Any) -> int:
    return 100 * int(named.get("format", text).count("%"))


def _translated(text: Any, table: Any = None, *_: Any, **__: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    values = values if isinstance(values, Iterable) else ()
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _summed(_values: Any, _attribute: Any = None, start: Any = 0, **_: Any) -> int:
    if not isinstance(start, int | float | Decimal):
        raise SecurityError("sum adds numbers to a number")
    return 0


def _searched(text: Any, looked: Any = None, *_: Any, **named: Any) -> int:
    """In the worst case Python looks for each character in the whole other text."""
    looked = named.get("chars", named.get("sep", looked))
    return len(_text(text)) * len(looked) // 10 if isinstance(looked, str | bytes) else 0


def _tabs(text: Any) -> int:
    return int(text.count("\t" if isinstance(text, str) else b"\t"))


def _split(text: Any, sep: Any = None, *_: Any, **named: Any) -> int:
    sep = named.get("sep", sep)
    return 20 * int(text.count(sep)) if sep else 10 * len(text)


_GROWTH: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("sort", "unique", "groupby"), _times(60)),
    **dict.fromkeys(("list", "title"), _times(20)),
    **dict.fromkeys(("splitlines", "wordcount"), _times(10)),
    **dict.fromkeys(("tojson", "xmlattr", "escape", "e", "forceescape"), _escaped),
    **dict.fromkeys(("urlencode", "pprint"), _quoted),
    **dict.fromkeys(("ljust", "rjust", "center", "zfill", "to_bytes"), _padded),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _searched),
    **dict.fromkeys(("trim", "strip", "lstrip", "rstrip"), _searched),
    **dict.fromkeys(("format", "format_map"), _braces),
    "%": _percents,
    "strftime": _timed,
    "batch": lambda value, linecount, *_, **__: abs(linecount) * ENTRY_UNITS + _times(40)(value),
    "slice": lambda value, slices, *_, **__: abs(slices) * 20 + _times(40)(value),
    "expandtabs": lambda text, tabsize=8: _tabs(text) * abs(tabsize),
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "round": lambda _value, precision=0, *_, **__: precision**2,
    "rsplit": lambda *values, **named: _searched(*values, **named) + _split(*values, **named),
    "split": _split,
    # This filter copies the text once for each tag.
    "striptags": lambda value: int(_text(value).count("<")) * len(_text(value)) // 400,
    "sum": _summed,
    "translate": _translated,
    "urlize": _urlized,
    "wordwrap": _wrapped,
}
"""Filters and methods that may make or scan much more than the size of their arguments, and the
extra cost of a call. The size of the arguments is charged for every call."""


def _refuse_wide(name: str, values: Sequence[object]) -> None:
    # The format is the first value, except for dates, where it comes after the date.
    for value in values if name == "strftime" else values[:1]:
        text = value.encode(errors="replace") if isinstance(value, str) else value
        if isinstance(text, bytes) and _WIDE[name].search(text):
            raise SecurityError(f"a field of a format is {WIDEST_FIELD} wide at most, and fixed")


def _refuse_codec(_value: object, encoding: object = "utf-8", errors: object = "strict") -> None:
    try:
        name = codecs.lookup(str(encoding)).name
    except (LookupError, ValueError):
        name = None
    if name not in CODECS or errors not in _ON_CODEC_ERROR:
        raise SecurityError(
            f"encode and decode take {', '.join(CODECS.values())} and {', '.join(_ON_CODEC_ERROR)}"
        )


def operated(operator: str, run: Callable[..., Any], left: Any, right: Any) -> Any:
    """Runs an operator; charges for text and lists, and refuses very long whole numbers."""
    bits = [side.bit_length() for side in (left, right) if isinstance(side, int)]
    if len(bits) == 2 and operator in ("*", "**"):
        bits = [sum(bits) if operator == "*" else bits[0] * abs(right)]
    if any(each > NUMBER_BITS for each in bits):
        raise SecurityError("it calculates a number of thousands of digits")
    if operator == "%" and isinstance(left, str | bytes):
        return charged("%", run, (left, right), {})
    sized = (str, bytes, list, tuple)
    sizes = [weight(side) for side in (left, right) if isinstance(side, sized)]
    if operator == "*" and sizes:
        numbers = [abs(side) for side in (left, right) if isinstance(side, int)]
        charge(math.prod([*sizes, *numbers]))
    else:
        charge(sum(sizes))
    return run(left, right)
