"""The beginning of a batch's file of errors, line by line and by cause."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from nightshift.common import storage
from nightshift.common.text import whole_characters
from nightshift.producer.serve.ledger.files import File

HEAD_BYTES = 256 * 1024
"""Bytes of the file that are read."""

FIRST_LINES = 5
"""Lines that the page shows."""

MOST_CAUSES = 10
"""Causes that the page counts, the most frequent."""

MOST_MESSAGE = 2000
"""Characters of a message that the page has."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a line says: whose it is, the code of its error or the status of its answer, and a sentence."""

    custom_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Head:
    """The `first` lines of a file, the causes of all `lines` that were read, and whether these are all it has."""

    first: list[Failure]
    causes: list[dict[str, Any]]
    lines: int
    is_whole: bool


def head(file: File) -> Head:
    """The beginning of a file of errors. StorageUnavailable, or FileNotFoundError where the file is gone."""
    size = min(file.bytes, HEAD_BYTES)
    data = storage.read_range(file.uri, 0, size) if size else b""
    return head_of(data, is_whole=size == file.bytes)


def head_of(data: bytes, *, is_whole: bool) -> Head:
    """The same of bytes, of which the last line is cut off if they are not the whole file. Pure."""
    lines = data.split(b"\n")
    lines.pop()  # behind the last newline
    found = [failure(line) for line in lines]
    counts = Counter((each.code, grouped(each.message)) for each in found)
    causes = [
        {"kind": code, "message": message, "rows": rows}
        for (code, message), rows in counts.most_common(MOST_CAUSES)
    ]
    return Head(found[:FIRST_LINES], causes, len(found), is_whole)


def failure(line: bytes) -> Failure:
    """What one line says. A server that refused a request may have said so in any shape, as deep as can be."""
    try:
        said = json.loads(line)
    except RecursionError:
        return Failure("—", "", "the line cannot be read")
    error, response = said["error"], said["response"] or {}
    if error is not None:
        return _failure(said, error["code"], error["message"])
    return _failure(said, response.get("status_code"), _sentence(response.get("body")))


def grouped(text: str) -> str:
    """A text as the page of failed rows groups it: each number is written as #."""
    return re.sub("[0-9]+", "#", text)


def _failure(said: dict[str, Any], code: Any, message: Any) -> Failure:
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    shown = (said["custom_id"] or "—", str(code), text[:MOST_MESSAGE])
    return Failure(*map(whole_characters, shown))


def _sentence(body: Any) -> Any:
    """The sentence in the body of a refusal; the body where none is found."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        return next((inner[name] for name in ("message", "detail") if inner.get(name)), body)
    return inner
