"""The filters, tests and methods that templates have, and a bound on what each makes.

What a call is given and the most that it makes are charged to the budget of the row before the call runs.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from json import JSONEncoder
from types import GeneratorType
from typing import Any, Final

from jinja2.exceptions import SecurityError

from nightshift.common.templates.budget import ENTRY_UNITS, REPR_CHARACTERS, STEP_UNITS, Budget

MOST_WIDTH = 100
"""Widest indent, and most digits that `round` keeps or drops."""

PIECE_UNITS = 20
"""Cost of a character that becomes a value of its own, as in a list of characters."""

FIELD_CHARACTERS = 500
"""Most characters of a number in a format: 1e308 has 309 digits, and up to 99 follow."""

DATE_CHARACTERS = 256
"""Most characters that one character of a date's format becomes, at which Python itself gives up."""

PERCENTS: Final = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(?:\.\d\d?)?[cdeEfFgGiosuxX%]")
BRACES: Final = re.compile(r"\{\{|\{[^{}:!]*(?:!s)?(?::[^{}\d]*(?:\.\d\d?)?[^{}\d]*)?\}")
DATES: Final = re.compile(r"%[-_^#0]?[a-zA-Z%]")
"""Fields of formats that templates have: without a width, and with at most two digits of precision. Python takes the
decimal digits of every script as a width."""

_CODECS = ("utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1")
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_NUMBERS = (int, float, Decimal)

Growth = Callable[..., int]
"""Units of what a call makes or reads beyond what it is given, from the budget and the values of the call."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a filter or a method makes: `units` for each unit that it is given, and what `growth` adds. With
    `of_text` the first value becomes a text, as Jinja makes it. With `of_steps` the values of the first value are read
    one by one, and each step costs as much as the paths of attributes among the other values.
    """

    units: int = 1
    growth: Growth | None = None
    of_text: bool = False
    of_steps: bool = False

    def run(
        self, budget: Budget, call: Callable[..., Any], value: Any, /, *args: Any, **named: Any
    ) -> Any:
        """Call with the values, after charging the most that the call makes."""
        if self.of_text:
            value = budget.text(value)
        # What another filter yields has no size before it is read.
        if self.growth is not None and isinstance(value, GeneratorType):
            value = list(value)
        args = tuple(list(one) if isinstance(one, GeneratorType) else one for one in args)
        others = (*args, *named.values())
        units = PIECE_UNITS if self.of_steps and isinstance(value, str | bytes) else self.units
        charged = STEP_UNITS + units * sum(map(budget.weight, (value, *others)))
        budget.charge(charged)
        if self.growth is not None:
            growth = self.growth(budget, value, *args, **named)
            budget.charge(growth)
            charged += growth
        if self.of_steps:
            paths = sum(len(each) for each in others if isinstance(each, str))
            value = budget.steps(value, STEP_UNITS + paths)
        return budget.made(call(value, *args, **named), charged)


# ---------------------------------------------------------------- operators


def concatenated(budget: Budget, values: Iterable[Any]) -> str:
    """Return what the operator `~` makes."""
    texts = list(map(budget.text, values))
    budget.charge(sum(map(len, texts)))
    return "".join(texts)


def sliced(budget: Budget, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """Return a part of a text or a list."""
    part = slice(start, stop, step)
    if isinstance(value, str | bytes | list | tuple):
        length = len(range(*part.indices(len(value))))
        budget.charge(length if isinstance(value, str | bytes) else length * ENTRY_UNITS)
    return value[part]


def operated(budget: Budget, operator: str, run: Callable[..., Any], left: Any, right: Any) -> Any:
    """Return what `+`, `-`, `*`, `//` or `%` makes."""
    charged = 1
    if operator == "%" and isinstance(left, str | bytes):
        charged = _percents(budget, left, *(right if isinstance(right, tuple) else (right,)))
    elif operator in "+-*":
        # The keys and items of a struct are sets.
        sized = [s for s in (left, right) if isinstance(s, str | bytes | list | tuple | Set)]
        charged += sum(map(budget.weight, sized))
        if operator == "*":
            charged *= max([1, *(side for side in (left, right) if isinstance(side, int))])
    budget.charge(charged)
    return budget.made(run(left, right), charged)


# ---------------------------------------------------------------- what grows


def fields(text: str, kind: re.Pattern[str]) -> int:
    """Return the number of fields of a format; SecurityError for a field that templates do not have."""
    rest, count = kind.subn("", text)
    if ("{" if kind is BRACES else "%") in rest:
        raise SecurityError(
            f"the format {text[:60]!r} has a field that templates do not have: a field has no width, at most two "
            "digits of precision, and is not a repr"
        )
    return count


def _printed(budget: Budget, value: Any) -> int:
    """The longest text of a value: those in lists and structs may get escapes."""
    return len(value) if isinstance(value, str) else budget.weight(value, REPR_CHARACTERS)


def _formatted(kind: re.Pattern[str]) -> Growth:
    def growth(budget: Budget, text: str, /, *values: Any, **named: Any) -> int:
        longest = max((_printed(budget, each) for each in (*values, *named.values())), default=0)
        # The format of a date may be in its field.
        return fields(text, kind) * (longest + FIELD_CHARACTERS) + text.count("%") * DATE_CHARACTERS

    return growth


_percents = _formatted(PERCENTS)


def _dated(_budget: Budget, _value: Any, format: str) -> int:
    fields(format, DATES)
    return len(format) * DATE_CHARACTERS


def _replaced(
    budget: Budget, value: Any, old: Any = None, new: Any = "", *_: Any, **__: Any
) -> int:
    if isinstance(value, str):
        old, new = budget.text(old), budget.text(new)
    # Dates have a method of this name.
    return value.count(old) * len(new) if isinstance(value, str | bytes) else 0


def _joined(budget: Budget, first: Any, second: Any = "", *_: Any, **named: Any) -> int:
    """The filter takes the values first, the method takes them last."""
    second = named.get("d", second)
    if isinstance(first, str | bytes) and not isinstance(second, str | bytes):
        first, second = second, first
    is_text = isinstance(first, str | bytes)
    parts = PIECE_UNITS * len(first) if is_text else sum(_printed(budget, each) for each in first)
    return parts + len(first) * _printed(budget, second)


def _split(_budget: Budget, text: Any, sep: Any = None, *_: Any, **__: Any) -> int:
    return PIECE_UNITS * text.count(sep) if sep else PIECE_UNITS // 2 * len(text)


def _stripped(_budget: Budget, text: Any, chars: Any = None) -> int:
    """Python looks for each character of the text in all of the others."""
    return len(text) * len(chars or "") // 10


def _indented(_budget: Budget, text: str, width: Any = 4, *_: Any, **__: Any) -> int:
    return (1 + sum(map(text.count, _LINE_ENDS))) * (PIECE_UNITS + 2 * _width(width))


def _json(budget: Budget, value: Any, indent: Any = None) -> int:
    """The parts of an indented JSON are short, so that they can be counted while they are made."""
    if indent is not None and _width(indent):
        for part in JSONEncoder(indent=indent).iterencode(value):
            budget.charge(len(part))
    return 0


def _width(width: Any) -> int:
    length = len(width) if isinstance(width, str) else width
    if not isinstance(length, int) or length > MOST_WIDTH:
        raise SecurityError(f"an indent is a text or a number, and at most {MOST_WIDTH} wide")
    return max(0, length)


def _number(_budget: Budget, value: Any, precision: int = 0, *_: Any, **__: Any) -> int:
    """A text times a number would be long, and a text with a percent sign is a format."""
    if not isinstance(value, _NUMBERS) or abs(precision) > MOST_WIDTH:
        raise SecurityError(f"it takes a number, and up to {MOST_WIDTH} digits")
    return 0


def _summed(_budget: Budget, _values: Any, _attribute: Any = None, start: Any = 0, **_: Any) -> int:
    if not isinstance(start, _NUMBERS):
        raise SecurityError("sum adds numbers to a number")
    return 0


def _decoded(_budget: Budget, _value: Any, encoding: str = "utf-8", errors: str = "strict") -> int:
    """Other encodings take the square of the length."""
    if encoding.lower() not in _CODECS or errors not in ("strict", "ignore", "replace"):
        raise SecurityError(
            "decode takes utf-8, ascii or latin-1, and the errors strict, ignore or replace"
        )
    return 0


# fmt: off
FILTERS: Final[Mapping[str, Bound]] = {
    **dict.fromkeys(("abs", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length",
                     "reverse", "safe"), Bound()),
    **dict.fromkeys(("groupby", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort",
                     "unique"), Bound(of_steps=True)),
    **dict.fromkeys(("capitalize", "lower", "string", "truncate", "upper"), Bound(3, of_text=True)),
    **dict.fromkeys(("e", "escape"), Bound(6, of_text=True)),
    **dict.fromkeys(("striptags", "title", "wordcount"), Bound(PIECE_UNITS, of_text=True)),
    "format": Bound(growth=_percents, of_text=True), "indent": Bound(growth=_indented, of_text=True),
    "join": Bound(growth=_joined), "replace": Bound(growth=_replaced, of_text=True), "round": Bound(growth=_number),
    "sum": Bound(growth=_summed, of_steps=True), "tojson": Bound(6, growth=_json),
    "trim": Bound(growth=_stripped, of_text=True),
}
"""Filters by their names in Jinja."""

TESTS: Final[Mapping[str, Bound | None]] = {
    **dict.fromkeys(("boolean", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number", "sameas",
                     "sequence", "string", "true", "undefined"), None),
    **dict.fromkeys(("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan",
                     "lt", "ne"), Bound()),
    **dict.fromkeys(("lower", "upper"), Bound(of_text=True)),
    **dict.fromkeys(("even", "odd"), Bound(growth=_number)),
}
"""Tests by their names in Jinja; None for those that do not read a value."""

METHODS: Final[Mapping[str, Bound]] = {
    # Of text and bytes.
    **dict.fromkeys(("count", "endswith", "find", "isdigit", "removeprefix", "removesuffix", "startswith"), Bound()),
    **dict.fromkeys(("capitalize", "lower", "title", "upper"), Bound(3)),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), Bound(growth=_stripped)),
    "decode": Bound(growth=_decoded), "format": Bound(growth=_formatted(BRACES)), "join": Bound(growth=_joined),
    "replace": Bound(growth=_replaced), "split": Bound(growth=_split), "splitlines": Bound(PIECE_UNITS),
    # Of structs, of dates and times, and of Jinja's own `loop`.
    **dict.fromkeys(("get", "items", "keys", "values", "date", "isoformat", "changed", "cycle"), Bound()),
    "strftime": Bound(growth=_dated),
}
"""Methods of a row's values and of `loop`."""
# fmt: on
