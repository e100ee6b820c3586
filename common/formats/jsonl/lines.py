"""JSONL: which lines are rows, and the row that a line holds.

A line ends with a newline byte and nothing else. Every line is a row, except lines that
`bytes.isspace` calls blank (empty, spaces, a lone carriage return). The planner's scan has the same
rule in other code, and a test compares the two.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO

from nightshift.common import json_errors
from nightshift.common.formats.jsonl.numbers import NumberText, exact_number
from nightshift.common.text import map_leaves, whole_characters

is_blank = bytes.isspace
"""Whether a line, which still has its newline, is no row. It stops at the first other byte."""

MOST_LINE_BYTES = 16 * 2**20
"""Longest line of a batch file, and of the input of a tenant: JSON of 16 MiB may take 500 MB once it is
parsed, and a reaper has 1 GiB."""

TOO_DEEP = "nested too deeply"

_BOM = b"\xef\xbb\xbf"

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class RepeatedKey(ValueError):
    """An object has a key more than once, and readers differ in which value counts."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; RepeatedKey where two have the same key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise RepeatedKey(f"the key {whole_characters(key)[:60]!r} is repeated in an object")
    return found


DOUBLES = json.JSONDecoder(object_pairs_hook=_unique)
"""Reads each fraction as the nearest double. The hook costs less than a search for colons that lets most lines
go without it (measured).
"""

EXACT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=exact_number)
"""Reads a number that no double holds as a `NumberText`."""


class BadLine(ValueError):
    """A line that is no row, with those of its columns that could be read."""

    def __init__(self, why: str, row: dict[str, Any]) -> None:
        super().__init__(why)
        self.row = row


def content_start(handle: BinaryIO) -> int:
    """Moves behind a byte order mark, if there is one; returns that position."""
    start = len(_BOM) if handle.read(len(_BOM)) == _BOM else 0
    handle.seek(start)
    return start


def parse_row(line: bytes) -> dict[str, Any]:
    """One row of JSON lines, see `parse_line`, in which a number that no double holds is a `NumberText`."""
    return _parsed(line, EXACT.decode)


def parse_line(line: bytes) -> dict[str, Any]:
    """One JSON object; ValueError says in a phrase what is wrong with the line.

    Lone surrogates, which Arrow and Postgres cannot hold, become U+FFFD; a line in which two keys
    become one by that is bad. So is a line in which an object repeats a key: which value counts would be a guess.
    """
    return _parsed(line, DOUBLES.decode)


def _parsed(line: bytes, decode: Callable[[str], Any]) -> dict[str, Any]:
    try:
        # Not json.loads(line): for bytes it would guess UTF-16 and UTF-32 as well.
        row = decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON: {json_errors.said(error)}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except RepeatedKey:
        raise
    except ValueError as error:
        raise ValueError("a number has too many digits") from error
    try:
        if _ESCAPED_SURROGATE.search(line):
            row = map_leaves(row, _whole)
    except RecursionError as error:  # the look for halves goes less deep than the parser
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        raise ValueError("two keys of an object differ in half of a character alone") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {_KINDS[type(row)]}, not an object")
    return row


_KINDS = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    NumberText: "number",
    bool: "boolean",
    type(None): "null",
}


def _whole(value: Any) -> Any:
    return whole_characters(value) if isinstance(value, str) else value
