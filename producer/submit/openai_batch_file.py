"""What submit reads in an OpenAI batch file: the endpoint that it names, and repeated ids."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightshift.common.errors import BadInput
from nightshift.common.formats import known, reading, streams
from nightshift.common.formats.jsonl.examine import HEAD_ROWS
from nightshift.common.formats.jsonl.lines import is_blank, parse_line
from nightshift.common.formats.jsonl.openai_batch import id_of
from nightshift.common.public_text import private, public
from nightshift.common.spec import JobSpec, RequestsTask
from nightshift.common.spec.tasks.requests import ENDPOINTS
from nightshift.common.storage import FileInfo

MOST_SUSPECTS = 8
"""Repeated hashes whose ids are compared; a repeated hash of different ids is a rare accident."""

_FIRST_MEMBER = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*"([^"\\]+)"')


class Line(NamedTuple):
    """A line that is a row, and its place; `number` counts from 1, blank lines too."""

    uri: str
    number: int
    text: bytes


def with_endpoint(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with the endpoint of the first line that names one, unless the spec names its own.

    Raises BadInput for an endpoint that does not work here, and when the first 1000 lines name none.
    """
    task = spec.task
    if not isinstance(task, RequestsTask) or "endpoint" in task.model_fields_set:
        return spec
    for info in infos:
        known.check_content(info, "openai")
    for line in islice(_lines(infos), HEAD_ROWS):
        url = _parsed(line).get("url")
        if url is None:
            continue
        if url not in ENDPOINTS:
            raise BadInput(
                f"{private(line.uri)} line {line.number}: the url is {public(repr(str(url)[:100]))}; the supported urls are "
                f"{', '.join(ENDPOINTS)}"
            )
        return spec.model_copy(update={"task": task.model_copy(update={"endpoint": url})})
    raise BadInput(
        f"{infos[0].uri} is not an OpenAI batch file: none of its first lines is an object with a url"
    )


def check_unique_ids(infos: Sequence[FileInfo], limit: int | None = None) -> None:
    """BadInput that names both lines of a `custom_id` that stands twice in the rows up to `limit`.

    One pass keeps 8 bytes a row; only where a hash comes twice a second pass compares the ids.
    """
    hashes = np.fromiter((hash(request_id) for request_id, _ in _ids(infos, limit)), np.int64)
    suspects = _repeated(hashes)
    if not suspects:
        return
    first_lines: dict[str, Line] = {}
    for request_id, line in _ids(infos, limit):
        if hash(request_id) not in suspects:
            continue
        first = first_lines.setdefault(request_id, line)
        if first is not line:
            raise BadInput(
                f"the custom_id {request_id[:100]!r} stands twice, in {private(first.uri)} line "
                f"{first.number} and in {private(line.uri)} line {line.number}: every request needs one of "
                "its own"
            )


def _repeated(hashes: NDArray[np.int64]) -> set[int]:
    """The hashes that come a second time first of all, MOST_SUSPECTS at most."""
    order = hashes.argsort(kind="stable")
    ordered = hashes[order]
    second = np.sort(order[1:][ordered[1:] == ordered[:-1]])
    return set(hashes[second[:MOST_SUSPECTS]].tolist())


def _ids(infos: Sequence[FileInfo], limit: int | None) -> Iterator[tuple[str, Line]]:
    """Every id that can be read, with its line; a line without one is a row error later."""
    for line in islice(_lines(infos), limit):
        found = _id(line)
        if found is not None:
            yield found, line


def _id(line: Line) -> str | None:
    """Most files begin each line with the id; such a line is not parsed to its end."""
    match = _FIRST_MEMBER.match(line.text)
    if match is not None and line.text.count(b'"custom_id"') == 1:
        try:
            return match[1].decode("utf-8")
        except UnicodeDecodeError:
            return None
    return id_of(line.text, _parsed(line))


def _parsed(line: Line) -> dict[str, object]:
    try:
        return parse_line(line.text)
    except ValueError:
        return {}


def _lines(infos: Sequence[FileInfo]) -> Iterator[Line]:
    rows, bounds = 0, reading.current()
    for info in infos:
        for number, text in enumerate(streams.lines(info.uri), 1):
            if not is_blank(text):
                rows += 1
                bounds.check_rows(rows)
                yield Line(info.uri, number, text)
