"""The filters and methods that templates have, and the most that a call of each makes.

Those of Jinja and Python are here whose time and result stay in proportion to what they are given, or can be told
before the call. What a call may make beyond what it is given is charged to the budget of the row before the call
(`common/templates/budget.py`), what it has made after it. docs/spec.md says what is left out.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from string import Formatter
from types import GeneratorType
from typing import Any, Final

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from nightshift.common.templates.budget import REPR_CHARACTERS, STEP_UNITS, charge, counted, weight

NUMBER_BITS = 64
"""Longest whole number that a template may calculate: such numbers take no time."""

WIDEST_FIELD = 1000
"""Widest field of a format."""

MOST_PRECISION = 100
"""Most digits that `round` keeps or drops."""

LONGEST_PATH = 100
"""Most parts of the path of an attribute, as in `sum(attribute="a.b")`."""

CODECS = ("utf-8", "ascii", "iso8859-1")
"""Encodings of `decode` by Python's own names: others take the square of the length."""

_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PERCENT = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.?)")

Cost = Callable[..., int]
"""Units of what a call may make beyond what it is given, from the values of the call."""


def _nothing(*_: Any, **__: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Call:
    """A filter or a method, and the `cost` of a call. The first `texts` values become texts, as Jinja makes them.
    With `steps` the values of its first value are read one by one, so that the clock is read on the way. The value
    at the place `path` names an attribute.
    """

    cost: Cost = _nothing
    texts: int = 0
    steps: bool = False
    path: int = 0


FREE: Final = Call()
"""A call that makes no more than it is given."""


def _each(units: int) -> Cost:
    """So many units for each character of a text, where the parts of a text become values, or longer."""
    return lambda *values, **_: (
        units * sum(len(value) for value in values if isinstance(value, str | bytes))
    )


def _times(units: int) -> Cost:
    """So many units for each unit of what the call is given."""
    return lambda value, *_, **__: units * weight(value)


def printed(value: Any) -> int:
    """The longest text of a value: those inside of lists and structs may get escapes."""
    return len(value) if isinstance(value, str) else weight(value, REPR_CHARACTERS)


def as_text(value: Any) -> str:
    """The text of a value, as Jinja makes it, after charging its length."""
    if isinstance(value, str):
        return value
    charge(printed(value))
    return str(value)


def _replaced(value: Any, old: Any = None, new: Any = "", *_: Any, **__: Any) -> int:
    # Dates have a method of this name.
    texts = isinstance(value, str | bytes) and isinstance(old, str | bytes)
    return value.count(old) * len(new) if texts else 0


def _joined(first: Any, second: Any = "", *_: Any, **named: Any) -> int:
    """The filter takes the values first, the method takes them last."""
    second = named.get("d", second)
    if isinstance(first, str | bytes) and not isinstance(second, str | bytes):
        first, second = second, first
    parts = 0 if isinstance(first, str | bytes) else sum(map(printed, first))
    return parts + len(first) * printed(second) + _each(20)(first, second)


def _split(text: Any, sep: Any = None, *_: Any, **__: Any) -> int:
    return 20 * int(text.count(sep)) if sep else 10 * len(text)


def _stripped(text: Any, characters: Any = None, *_: Any, **named: Any) -> int:
    """Python looks for each character of the text in all of the others."""
    return len(text) * len(named.get("chars", characters) or "") // 10


def _padded(_value: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return abs(width)


def _indented(text: str, width: int | str = 4, *_: Any, **__: Any) -> int:
    lines = 1 + sum(map(text.count, _LINE_ENDS))
    return lines * (20 + 2 * (width if isinstance(width, int) else len(width)))


def _as_json(value: Any, indent: int | None = None) -> int:
    return weight(value) * (6 + abs(indent or 0) * (_depth(value) if indent else 0))


def _depth(value: Any) -> int:
    """How deep lists and structs stand in each other."""
    depth, level = 0, [value]
    while level := [each for one in level for each in _inside(one)]:
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _rounded(value: Any, precision: int = 0, *_: Any, **__: Any) -> int:
    if not isinstance(value, int | float | Decimal) or abs(precision) > MOST_PRECISION:
        raise SecurityError(f"round takes a number, and up to {MOST_PRECISION} digits")
    return 0


def _summed(_values: Any, attribute: Any = None, start: Any = 0) -> int:  # noqa: ARG001
    if not isinstance(start, int | float | Decimal):
        raise SecurityError("sum adds numbers to a number")
    return 0


def _decoded(_value: Any, encoding: str = "utf-8", errors: str = "strict") -> int:
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        name = ""
    if name not in CODECS or errors not in ("strict", "ignore", "replace"):
        raise SecurityError(
            "decode takes utf-8, ascii or latin-1, and the errors strict, ignore or replace"
        )
    return 0


def _time_formatted(_value: Any, format: str = "") -> int:
    return 256 * len(format)  # where Python itself gives up


def _braces(text: str, /, *values: Any, **named: Any) -> int:
    fields = [
        (spec or "", how) for _, name, spec, how in Formatter().parse(text) if name is not None
    ]
    specs = " ".join(spec for spec, _ in fields)
    if "{" in specs:
        _refuse_width()
    cost = _formatted(
        re.findall(r"\d+", specs),
        len(fields),
        [*values, *named.values()],
        escapes=any(how in ("r", "a") for _, how in fields),
    )
    # The format of a date stands in its field.
    return cost + 256 * len(specs) * ("%" in specs)


def percents(text: Any, /, *values: Any, **named: Any) -> int:
    """The cost of a format with percent signs, the filter's and the operator's."""
    fields = _PERCENT.findall(text if isinstance(text, str) else bytes(text).decode("latin-1"))
    if any("(" in key for key, *_ in fields):
        raise SecurityError("a key of a format has no brackets")
    widths = [width for _, *both, _ in fields for width in both if width]
    escapes = any(kind in ("r", "a") for *_, kind in fields)
    return _formatted(widths, len(fields), [*values, *named.values()], escapes=escapes)


def _formatted(widths: list[str], fields: int, values: Iterable[Any], *, escapes: bool) -> int:
    for width in widths:
        digits = width.lstrip("0")
        if digits and (digits == "*" or len(digits) > 4 or int(digits) > WIDEST_FIELD):
            _refuse_width()
    longest = max(
        (weight(each, REPR_CHARACTERS) if escapes else printed(each) for each in values), default=0
    )
    return fields * (longest + WIDEST_FIELD)


def _refuse_width() -> None:
    raise SecurityError(f"a field of a format is {WIDEST_FIELD} wide at most, and fixed")


# fmt: off
FILTERS: Final[Mapping[str, Call]] = {
    **dict.fromkeys(("abs", "count", "d", "default", "dictsort", "filesizeformat", "float", "int", "items", "last",
                     "length", "safe"), FREE),
    **dict.fromkeys(("first", "map", "reject", "select"), Call(steps=True)),
    **dict.fromkeys(("rejectattr", "selectattr"), Call(steps=True, path=1)),
    **dict.fromkeys(("max", "min"), Call(steps=True, path=2)),
    **dict.fromkeys(("string", "truncate"), Call(texts=1)),
    **dict.fromkeys(("capitalize", "lower", "upper"), Call(_each(2), texts=1)),
    **dict.fromkeys(("striptags", "title"), Call(_each(20), texts=1)),
    **dict.fromkeys(("e", "escape", "forceescape"), Call(_times(6), texts=1)),
    "center": Call(_padded, texts=1), "format": Call(percents, texts=1), "groupby": Call(_each(60), steps=True, path=1),
    "indent": Call(_indented, texts=1), "join": Call(_joined, path=2), "list": Call(_each(20), steps=True),
    "replace": Call(_replaced, texts=3), "reverse": Call(_each(20)), "round": Call(_rounded),
    "sort": Call(_each(60), steps=True, path=3), "sum": Call(_summed, steps=True, path=1), "tojson": Call(_as_json),
    "trim": Call(_stripped, texts=1), "unique": Call(_each(60), steps=True, path=2), "urlencode": Call(_times(12)),
    "wordcount": Call(_each(10), texts=1),
}
"""Filters by their names in Jinja."""

METHODS: Final[Mapping[str, Call]] = {
    # Of text and bytes.
    **dict.fromkeys((
        "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower",
        "isidentifier", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "partition", "removeprefix",
        "removesuffix", "startswith",
    ), FREE),
    **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "upper"), Call(_each(2))),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), Call(_padded)),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), Call(_stripped)),
    "decode": Call(_decoded), "format": Call(_braces), "hex": Call(_each(1)), "join": Call(_joined),
    "replace": Call(_replaced), "split": Call(_split), "splitlines": Call(_each(10)), "title": Call(_each(20)),
    # Of structs, numbers, dates and times, and of Jinja's own loop and cycler.
    **dict.fromkeys((
        "get", "items", "keys", "values", "is_integer", "ctime", "date", "isocalendar", "isoformat", "isoweekday", "time",
        "timestamp", "toordinal", "total_seconds", "weekday", "changed", "cycle", "next", "reset",
    ), FREE),
    "strftime": Call(_time_formatted),
}
"""Methods of a row's values and of Jinja's own."""
# fmt: on


def charged(call: Call, run: Callable[..., Any], values: Iterable[Any], named: Any) -> Any:
    """Runs a filter or a method after charging what it is given and the most that it may make."""
    given = [as_text(one) if at < call.texts else one for at, one in enumerate(values)]
    if call.cost is _replaced and call.texts:
        # The filter makes texts of these by their names, too.
        texts = ("old", "new")
        named = {name: as_text(one) if name in texts else one for name, one in named.items()}
    if call.cost is _joined:
        # What another filter gives has no size before it is made.
        given = [list(counted(one)) if isinstance(one, GeneratorType) else one for one in given]
    if call.path:
        path = named.get("attribute", given[call.path] if len(given) > call.path else None)
        if isinstance(path, str) and path.count(".") >= LONGEST_PATH:
            raise SecurityError(f"the path of an attribute has {LONGEST_PATH} parts at most")
    cost = STEP_UNITS + sum(map(weight, given)) + sum(map(weight, named.values()))
    charge(cost)
    more = call.cost(*given, **named)
    charge(more)
    if call.steps and given:
        given[0] = counted(given[0])
    result = bounded(run(*given, **named))
    charge(weight(result) - cost - more)
    return result


def bounded(result: Any) -> Any:
    """What a call or an operator gives; SecurityError where it is a long number."""
    if isinstance(result, int):
        _refuse_long(result.bit_length())
    if isinstance(result, Markup):
        return str(result)  # else it would escape whatever it is put together with
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
        return charged(PERCENTS, run, (left, right), {})
    if operator == "*" and sizes:
        sizes = [sizes[0] * abs(side) for side in (left, right) if isinstance(side, int)]
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        # Check the length before the power is computed: the computation may never end.
        _refuse_long((left.bit_length() - 1) * right)
    charge(sum(sizes))
    return bounded(run(left, right))


PERCENTS: Final = Call(percents)
