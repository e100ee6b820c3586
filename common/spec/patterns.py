r"""Regular expressions of users, matched by RE2 in time that grows with the text alone.

Python's `re` backtracks: `(a+)+$` takes hours for thirty letters, and holds the GIL meanwhile. RE2 does not have what
needs backtracking (lookaround, backreferences), and neither have the grammars of engines. It reads \d, \w and \s as
ASCII, and `$` as the end of the text, as these grammars do.
"""

import re
from functools import lru_cache
from typing import Any

import re2
from jsonschema import _keywords, _legacy_keywords, _utils

LONGEST = 10_000
"""Most characters of a pattern."""

MEMORY_BYTES = 8 * 2**20
"""Most memory of a compiled pattern and of its matching, RE2's own default."""

_UNICODE_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_OPEN_REPEAT = re.compile(r"(?<!\\)\{,[0-9]+\}")


class UnusablePatternError(ValueError):
    """A text is not a regular expression that RE2 can match; the message says why."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The pattern, with `fullmatch` and `search`; UnusablePatternError for one that RE2 does not have, or that it
    reads differently than other engines.
    """
    if len(pattern) > LONGEST:
        raise UnusablePatternError(f"it has more than {LONGEST:,} characters")
    if _OPEN_REPEAT.search(pattern):
        raise UnusablePatternError("engines read {,n} differently: write {0,n}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        return re2.compile(_as_re2(pattern), options)
    except re2.error as error:
        (why,) = error.args[:1] or ("",)
        why = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise UnusablePatternError(
            f"{why} (patterns are RE2's: without lookaround, backreferences and \\Z)"
        ) from error
    except UnicodeEncodeError as error:
        raise UnusablePatternError("it has half of a character") from error


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches; raises as `compiled`."""
    try:
        return compiled(pattern).fullmatch(text) is not None
    except UnicodeEncodeError:  # half of a character, which RE2 does not take
        return False


def found_in(pattern: str, text: str) -> bool:
    """Whether the pattern is found somewhere in the text; raises as `compiled`."""
    try:
        return compiled(pattern).search(text) is not None
    except UnicodeEncodeError:
        return False


def _as_re2(pattern: str) -> str:
    r"""RE2 writes \u00e9 as \x{00e9}."""
    return _UNICODE_ESCAPE.sub(
        lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern
    )


class _Text(str):
    """A text that jsonschema matches by RE2."""

    __slots__ = ()


def matched_by_re2(value: Any) -> Any:
    """Return a JSON value whose texts jsonschema matches by RE2, also the names of properties. Its lists and objects are
    those of `value`, changed.
    """
    root = [value]
    waiting: list[Any] = [root]
    while waiting:
        inside = waiting.pop()
        if isinstance(inside, dict):
            entries = [(_Text(name), each) for name, each in inside.items()]
            inside.clear()
            inside.update(entries)
        for place, each in inside.items() if isinstance(inside, dict) else enumerate(inside):
            if isinstance(each, str):
                inside[place] = _Text(each)
            elif isinstance(each, dict | list):
                waiting.append(each)
    return root[0]


class _Re:
    """The module `re` as jsonschema uses it. A subschema may name a dialect of its own with `$schema`, and then
    jsonschema takes its own class for it, so that keywords of an extended validator would be left out. The text says
    how it is matched, since other libraries validate in the same process.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(re, name)

    @staticmethod
    def search(pattern: str, text: str, *flags: Any) -> Any:
        if isinstance(text, _Text):
            return found_in(pattern, text)
        return re.search(pattern, text, *flags)


for _module in (_keywords, _legacy_keywords, _utils):
    vars(_module)["re"] = _Re()
