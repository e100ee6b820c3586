"""JSONL: which lines are rows, and the row that a line holds.

A line ends with a newline byte and nothing else. Every line is a row, except lines that
`bytes.isspace` calls blank (empty, spaces, a lone carriage return). The planner's scan has the same
rule in other code, and a test compares the two.
"""

import json
import re
from typing import Any, BinaryIO

from nightshift.common import json_errors
from nightshift.common.text import map_leaves, whole_characters

is_blank = bytes.isspace
"""Whether a line, which still has its newline, is no row. It stops at the first other byte."""

MOST_LINE_BYTES = 16 * 2**20
"""Longest line of a batch file, and of the input of a tenant: JSON of 16 MiB may take 500 MB once it is
parsed, and a reaper has 1 GiB."""

TOO_DEEP = "nested too deeply"

_BOM = b"\xef\xbb\xbf"

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


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


def parse_line(line: bytes, *, unique_keys: bool = False) -> dict[str, Any]:
    """One row; ValueError says in a phrase what is wrong with the line.

    Lone surrogates, which Arrow and Postgres cannot hold, become U+FFFD; a line in which two keys
    become one by that is bad. With `unique_keys` so is a line in which an object repeats a key; else the last
    value counts.
    """
    try:
        # Not json.loads(line): for bytes it would guess UTF-16 and UTF-32 as well.
        text = line.decode("utf-8")
        row = json.loads(text)
        key = _repeated_key(text) if unique_keys and not _has_all_keys(text, row) else None
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON: {json_errors.said(error)}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        raise ValueError("a number has too many digits") from error
    if key is not None:
        raise ValueError(f"the key {_whole(key)!r} is repeated in an object")
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


_COLON_BEHIND_SPACE = re.compile(r"[ \t\r\n]:")


def _has_all_keys(text: str, row: Any) -> bool:
    """Return True if the text cannot repeat a key: it has no more colons that may follow a key than `row` has keys.

    False says nothing. The parser's hook for pairs doubles the time of a line, so most lines must not need it.
    """
    if not isinstance(row, dict):
        return False
    return text.count('":') + len(_COLON_BEHIND_SPACE.findall(text)) <= len(row)


def _repeated_key(text: str) -> str | None:
    """Return a key that an object of the text repeats, of the outermost such object; None if there is none."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append(next(key for key in keys if keys.count(key) > 1))
        return found

    json.loads(text, object_pairs_hook=unique)
    return repeated[-1] if repeated else None  # the outermost object ends last


def parse_row(line: bytes) -> dict[str, Any]:
    """One row of JSON lines, see `parse_line`; an object that repeats a key is refused: which value counts would be
    a guess.
    """
    return parse_line(line, unique_keys=True)


_KINDS = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _whole(value: Any) -> Any:
    return whole_characters(value) if isinstance(value, str) else value
