"""Rows of JSON lines whose text holds half of a character (a lone surrogate), which is read as U+FFFD.

The scan for newlines looks for what may be one, in passing; only a file that has some is read once more.
"""

import json
import re
from itertools import islice

from nightshift.common import storage
from nightshift.common.formats import reading
from nightshift.common.formats.jsonl.lines import DOUBLES, content_start, is_blank
from nightshift.common.text import has_half_characters

_HIGH = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"

_HALF = re.compile(
    rb"\\" + _HIGH + _LOW + rb"|" + _HIGH + rb"(?!" + _LOW + rb")|(?<!" + _HIGH + rb")" + _LOW
)
"""The escape of half of a character, without the escape of the other half beside it. A match may only look so:
where the backslash of the first half is itself escaped, the other half may stand alone.
"""

_SEAM_BYTES = 12
"""One byte less than the longest that is looked for: two halves behind a backslash."""

LINES_A_CHECK = 4096


class HalfCharacters:
    """Takes a file in pieces; `found` says that it may hold half of a character."""

    def __init__(self) -> None:
        self.found = False
        self._last = b""

    def take(self, buffer: bytearray, size: int) -> None:
        """The next piece, the first `size` bytes of the buffer."""
        if self.found:
            return
        seam = self._last + bytes(buffer[: min(size, _SEAM_BYTES)])
        self.found = _HALF.search(seam) is not None
        # Searching for the escape alone is ten times as fast, and most files have none.
        if not self.found and (b"\\ud" in buffer or b"\\uD" in buffer):
            self.found = _HALF.search(buffer, 0, size) is not None
        self._last = (self._last + buffer[max(0, size - _SEAM_BYTES) : size])[-_SEAM_BYTES:]


def count(uri: str, rows: int) -> int:
    """How many of the first `rows` rows of a file of JSON lines hold half of a character."""
    bounds, found = reading.current(), 0
    with storage.open_input(uri, sequential=True) as handle:
        content_start(handle)
        lines = (line for line in handle if not is_blank(line))
        for number, line in enumerate(islice(lines, rows)):
            if number % LINES_A_CHECK == 0:
                bounds.check()
            found += _HALF.search(line) is not None and _has_some(line)
    return found


def _has_some(line: bytes) -> bool:
    try:
        found = DOUBLES.decode(line.decode("utf-8"))
        return has_half_characters(json.dumps(found, ensure_ascii=False))
    except (ValueError, RecursionError):
        return False  # no row, as its error says
