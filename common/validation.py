"""Mistakes that pydantic finds, in words of ours: one table from its types of errors to phrases."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from nightshift.common.text import counted, did_you_mean

MEMBER = re.compile(
    r"(str|int|float|bool|none|constrained-\w+|(list|dict|tuple|literal|nullable|lax-or-strict|function-\w+)\[.*\])"
)
"""Steps of a place that name the member of a union, as pydantic writes them."""

SHOWN_CHARACTERS = 40
"""Of a value that is wrong; only of those of which few are allowed, which are no passwords."""


def _one_of(given: object, allowed: str) -> str:
    said = f"{_shown(given)} is not one of {allowed}"
    names = re.findall(r"'([^']*)'", allowed)
    return said + (did_you_mean(given.lower(), names) if isinstance(given, str) else "")


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _text(_: Mapping[str, Any], given: object) -> str:
    is_scalar = isinstance(given, int | float) or type(given).__name__ in ("date", "datetime")
    return "must be text" + (": put it in quotes" if is_scalar else "")


def _tag(ctx: Mapping[str, Any], _: object = None) -> str:
    return str(ctx["discriminator"]).strip("'")


WHOLE = "must be a whole number"
NUMBER = "must be a number"
BOOL = "must be true or false"
LIST = "must be a list, such as [a, b]"
SECTION = "must be a section: keys with values"
TIME = "must be a time, such as 2026-12-24T06:00+01:00"
DATE = "must be a date, such as 2026-12-24"

PHRASES: Mapping[str, str | Callable[[Mapping[str, Any], object], str]] = {
    "missing": "the key is missing",
    "extra_forbidden": "unknown key",
    "union_tag_not_found": lambda ctx, _: f"the key {_tag(ctx)} is missing",
    "union_tag_invalid": lambda ctx, _: f"{_tag(ctx)} {_one_of(ctx['tag'], ctx['expected_tags'])}",
    "literal_error": lambda ctx, given: _one_of(given, ctx["expected"]),
    "enum": lambda ctx, given: _one_of(given, ctx["expected"]),
    "string_type": _text,
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_from_float": WHOLE,
    "int_parsing_size": "must be a whole number with fewer digits",
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": BOOL,
    "bool_parsing": BOOL,
    "list_type": LIST,
    "tuple_type": LIST,
    "set_type": LIST,
    "frozen_set_type": LIST,
    "dict_type": SECTION,
    "mapping_type": SECTION,
    "model_type": SECTION,
    "model_attributes_type": SECTION,
    "dataclass_type": SECTION,
    "none_required": "must be left out",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than": "must be less than {lt:,}",
    "less_than_equal": "must be at most {le:,}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": lambda ctx, _: (
        f"must have at least {counted(ctx['min_length'], 'entry', 'entries')}"
    ),
    "too_long": lambda ctx, _: (
        f"must have at most {counted(ctx['max_length'], 'entry', 'entries')}"
    ),
    "string_too_short": lambda ctx, _: (
        f"must have at least {counted(ctx['min_length'], 'character')}"
    ),
    "string_too_long": lambda ctx, _: (
        f"must have at most {counted(ctx['max_length'], 'character')}"
    ),
    "string_pattern_mismatch": "must be a text of another form",
    "string_unicode": "must be text in UTF-8",
    "json_invalid": "must be JSON",
    "json_type": "must be JSON",
    "url_type": "must be an address, such as https://host/path",
    "url_parsing": "must be an address, such as https://host/path",
    "url_scheme": "must be an address that begins with {expected_schemes}",
    "datetime_type": TIME,
    "datetime_parsing": TIME,
    "datetime_from_date_parsing": TIME,
    "timezone_aware": "must be a time with its zone, such as 2026-12-24T06:00+01:00",
    "date_type": DATE,
    "date_parsing": DATE,
    "date_from_datetime_parsing": DATE,
    "time_delta_type": "must be a duration",
    "time_delta_parsing": "must be a duration",
    "recursion_loop": "holds itself",
}
"""What is said of each type of error: a text with values of its context, or a function of the context and of the
value that was given.
"""

OTHER = "this value does not fit here"
"""What is said of a type that the table does not have."""


def phrase(mistake: Mapping[str, Any]) -> str:
    """One mistake of `ValidationError.errors()`; what our own validators raise stays as it is."""
    kind = mistake["type"]
    if kind in ("value_error", "assertion_error"):
        said: str = mistake["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return said
    found = PHRASES.get(kind)
    ctx = mistake.get("ctx", {})
    if found is None:
        return OTHER
    return found.format(**ctx) if isinstance(found, str) else found(ctx, mistake["input"])


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """The dotted place of the first mistake, and the phrase."""
    mistake = error.errors()[0]
    return place_of(mistake["loc"]), phrase(mistake)


def place_of(loc: tuple[int | str, ...]) -> str:
    """The place of a mistake with dots, without the members of unions."""
    return ".".join(str(step) for step in loc if not MEMBER.fullmatch(str(step)))


def merged(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Places and phrases with those of one place as one: a union has a phrase for each of its members. A place
    above another one says less, and goes.
    """
    by_place: dict[str, list[str]] = {}
    for place, said in found:
        by_place.setdefault(place, []).append(said)
    deep = [place for place in by_place if any(each.startswith(f"{place}.") for each in by_place)]
    return [
        (place, _either(list(dict.fromkeys(said))))
        for place, said in by_place.items()
        if place not in deep or place == ""
    ]


def _either(said: list[str]) -> str:
    musts = [each.removeprefix("must be ") for each in said if each.startswith("must be ")]
    others = [each for each in said if not each.startswith("must be ")]
    if len(musts) > 1:
        musts = [each.partition(":")[0] for each in musts]
    return "; ".join([*others, *(["must be " + ", or ".join(musts)] if musts else [])])
