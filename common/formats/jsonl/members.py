"""Read and replace single members in the text of a JSON object; all other text is kept byte for byte."""

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def member(text: str, name: str) -> str | None:
    """Return the JSON text of a member of a valid JSON object: the first if the key is repeated, None if it is absent."""
    return next((text[start:stop] for key, start, stop in _members(text) if key == name), None)


def with_member(text: str, name: str, value: str) -> str:
    """Replace the value of every member with this key by `value`, a JSON text."""
    at, found = 0, []
    for key, start, stop in _members(text):
        if key == name:
            found += [text[at:start], value]
            at = stop
    return "".join([*found, text[at:]])


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each key with the start and end offsets of its value."""
    at = _past_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _past_space(text, _past_space(text, at) + 1)  # a colon is between the two
        _, stop = _DECODER.raw_decode(text, start)
        yield key, start, stop
        at = _past_space(text, stop)
        if text[at] == ",":
            at = _past_space(text, at + 1)


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "it also matches nothing"
    return match.end()
