"""The filters and methods that templates have, and the most that a call of each makes.

Those of Jinja and Python are here that take a time in proportion to what they are given and make. Whatever a call
may make beyond what it is given is charged to the budget of the row before the call
(`common/templates/budget.py`). docs/spec.md says what is left out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from string import Formatter
from types import GeneratorType
from typing import Any, Final

from jinja2.exceptions import SecurityError

from nightshift.common.templates.budget import STEP_UNITS, charge, counted, weight

NUMBER_BITS = 64
"""Longest whole number that a template may calculate: numbers of this length take no time, and too few of them
have equal hashes."""

WIDEST_FIELD = 1000
"""Widest field of a format."""

CODECS = ("utf-8", "ascii", "latin-1")
"""Encodings of `decode`: others take the square of the length."""

_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")

Cost = Callable[..., int]
"""Units of what a call may make beyond what it is given, from the values of the call."""


def nothing(*_: Any, **__: Any) -> int:
    """The cost of a call that makes no more than it is given."""
    return 0


def _each(units: int) -> Cost:
    """So many units for each character of a text, where the parts of a text become values, or longer."""
    return lambda *values, **_: (
        units * sum(len(value) for value in values if isinstance(value, str | bytes))
    )


def _times(units: int) -> Cost:
    """So many units for each unit of what the call is given."""
    return lambda value, *_, **__: units * weight(value)


def _replaced(value: Any, old: Any = None, new: Any = "", *_: Any, **__: Any) -> int:
    # Dates have a method of this name.
    return int(_text(value).count(old)) * len(new) if isinstance(old, str | bytes) else 0


def _joined(first: Any, second: Any = "", *_: Any, **named: Any) -> int:
    """The filter takes the values first, the method takes them last."""
    second = named.get("d", second)
    if isinstance(first, str | bytes) and not isinstance(second, str | bytes):
        first, second = second, first
    return len(first) * weight(second) + _each(20)(first, second)


def _split(text: Any, sep: Any = None, *_: Any, **__: Any) -> int:
    return 20 * int(text.count(sep)) if sep else 10 * len(text)


def _stripped(text: Any, characters: Any = None, *_: Any, **named: Any) -> int:
    """Python looks for each character of the text in all of the others."""
    return len(_text(text)) * len(named.get("chars", characters) or "") // 10


def _stripped_of_tags(value: Any) -> int:
    """Jinja copies the text once for each tag."""
    return int(_text(value).count("<")) * len(_text(value)) // 400


def _padded(_value: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return abs(width)


def _indented(text: str, width: int | str = 4, *_: Any, **__: Any) -> int:
    lines = 1 + sum(map(text.count, _LINE_ENDS))
    return lines * (20 + 2 * (width if isinstance(width, int) else len(width)))


def _as_json(value: Any, indent: int | None = None) -> int:
    return weight(value) * (6 + abs(indent or 0))


def _rounded(_value: Any, precision: int = 0, *_: Any, **__: Any) -> int:
    return precision**2


def _summed(_values: Any, _attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float | Decimal):
        raise SecurityError("sum adds numbers to a number")
    return 0


def _decoded(_value: Any, encoding: str = "utf-8", errors: str = "strict") -> int:
    if encoding.lower() not in CODECS or errors not in ("strict", "ignore", "replace"):
        raise SecurityError(
            f"decode takes {', '.join(CODECS)}, and the errors strict, ignore or replace"
        )
    return 0


def _time_formatted(_value: Any, format: str = "") -> int:
    return 256 * len(format)  # where Python itself gives up


def _braces(text: str, /, *values: Any, **named: Any) -> int:
    fields = [spec or "" for _, name, spec, _ in Formatter().parse(text) if name is not None]
    if any("{" in spec for spec in fields):
        _refuse_width()
    return _formatted(re.findall(r"\d+", " ".join(fields)), len(fields), [*values, *named.values()])


def percents(text: Any, /, *values: Any, **named: Any) -> int:
    """The cost of a format with percent signs, the filter's and the operator's."""
    fields = _PERCENT.findall(text if isinstance(text, str) else bytes(text).decode("latin-1"))
    widths = [width for field in fields for width in field if width]
    return _formatted(widths, len(fields), [*values, *named.values()])


def _formatted(widths: list[str], fields: int, values: Iterable[Any]) -> int:
    if any(width == "*" or int(width[:9]) > WIDEST_FIELD for width in widths):
        _refuse_width()
    return fields * (max(map(weight, values), default=0) + WIDEST_FIELD)


def _refuse_width() -> None:
    raise SecurityError(f"a field of a format is {WIDEST_FIELD} wide at most, and fixed")


def _text(value: Any) -> Any:
    """The text of a value, as Jinja makes it before a filter starts."""
    return value if isinstance(value, str | bytes) else str(value)


# fmt: off
_BOTH: Mapping[str, Cost] = {
    **dict.fromkeys(("capitalize", "lower", "upper"), _each(2)),
    **dict.fromkeys(("count", "items"), nothing),
    "center": _padded, "join": _joined, "replace": _replaced, "title": _each(20),
}

FILTERS: Final[Mapping[str, Cost]] = {
    **_BOTH,
    **dict.fromkeys((
        "abs", "d", "default", "filesizeformat", "first", "float", "int", "last", "length", "map", "max", "min",
        "reject", "rejectattr", "safe", "select", "selectattr", "string", "truncate",
    ), nothing),
    **dict.fromkeys(("dictsort", "groupby", "sort", "unique"), _each(60)),
    **dict.fromkeys(("e", "escape", "forceescape"), _times(6)),
    **dict.fromkeys(("list", "reverse"), _each(20)),
    "format": percents, "indent": _indented, "round": _rounded, "striptags": _stripped_of_tags, "sum": _summed,
    "tojson": _as_json, "trim": _stripped, "urlencode": _times(12), "wordcount": _each(10),
}
"""Filters by their names in Jinja."""

METHODS: Final[Mapping[str, Cost]] = {
    **_BOTH,
    # Methods of text and bytes.
    **dict.fromkeys((
        "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric",
        "isspace", "istitle", "isupper", "partition", "removeprefix", "removesuffix", "startswith",
    ), nothing),
    **dict.fromkeys(("casefold", "swapcase"), _each(2)),
    **dict.fromkeys(("ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), _stripped),
    "decode": _decoded, "format": _braces, "hex": _each(1), "split": _split, "splitlines": _each(10),
    # Methods of structs, numbers, dates and times, and of Jinja's own loop and cycler.
    **dict.fromkeys((
        "get", "keys", "values", "is_integer", "date", "isocalendar", "isoformat", "isoweekday", "time", "timestamp",
        "toordinal", "total_seconds", "weekday", "changed", "cycle", "next", "reset",
    ), nothing),
    "strftime": _time_formatted,
}
"""Methods of a row's values and of Jinja's own."""
# fmt: on


def charged(cost: Cost, run: Callable[..., Any], values: Iterable[Any], named: Any) -> Any:
    """Runs a filter or a method after charging what it is given and the most that it may make."""
    # The generator of another filter has no size before its values are made.
    given = [list(counted(one)) if isinstance(one, GeneratorType) else one for one in values]
    charge(STEP_UNITS + sum(map(weight, given)) + sum(map(weight, named.values())))
    charge(cost(*given, **named))
    return bounded(run(*given, **named))


def bounded(result: Any) -> Any:
    """What a call or an operator gives; SecurityError where it is a long number."""
    if isinstance(result, int):
        _refuse_long(result.bit_length())
    # Charged step by step, so that the clock is read while another filter takes what this one gives.
    return counted(result) if isinstance(result, Iterator) else result


def _refuse_long(bits: int) -> None:
    if bits > NUMBER_BITS:
        raise SecurityError(f"it makes a number of more than {NUMBER_BITS} bits")


def operated(operator: str, run: Callable[..., Any], left: Any, right: Any) -> Any:
    """Runs an operator after charging the texts and lists that it makes."""
    sized = (str, bytes, list, tuple)
    sizes = [weight(side) for side in (left, right) if isinstance(side, sized)]
    if operator == "%" and isinstance(left, str | bytes):
        return charged(percents, run, (left, right), {})
    if operator == "*" and sizes:
        sizes = [sizes[0] * abs(side) for side in (left, right) if isinstance(side, int)]
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        # Check the length before the power is computed: the computation may never end.
        _refuse_long((left.bit_length() - 1) * right)
    charge(sum(sizes))
    return bounded(run(left, right))
