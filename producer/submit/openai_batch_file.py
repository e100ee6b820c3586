"""What submit looks at in an OpenAI batch file: the endpoint it asks, and ids that stand twice."""

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nightshift.common.errors import BadInput
from nightshift.common.formats import registry
from nightshift.common.formats.jsonl.lines import is_blank, parse_line
from nightshift.common.formats.jsonl.reader import HEAD_ROWS
from nightshift.common.spec import Endpoint, JobSpec, RequestsTask
from nightshift.common.storage import FileInfo
from nightshift.producer.submit import convert

ENDPOINTS: tuple[str, ...] = get_args(Endpoint)

PAIRS_LOOKED_AT = 8
"""Pairs of equal hashes that are compared for real; one of different ids is a rare accident."""

_FIRST_MEMBER = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*"([^"\\]+)"')


class Line(NamedTuple):
    """A line that is a row, and where it stands; `number` counts from 1, blank lines as well."""

    uri: str
    number: int
    text: bytes


class Named(NamedTuple):
    """The id of a request, and the line that it stands in."""

    id: str
    line: Line


def with_endpoint(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with the endpoint of the first line that names one, unless it says its own.

    Raises BadInput where that is none we know, or the first 1000 lines name none.
    """
    task = spec.task
    if not isinstance(task, RequestsTask) or "endpoint" in task.model_fields_set:
        return spec
    for info in infos:
        registry.check_content(info, "openai")
    for line in islice(_lines(infos), HEAD_ROWS):
        url = _parsed(line).get("url")
        if url is None:
            continue
        if url not in ENDPOINTS:
            raise BadInput(
                f"{line.uri} line {line.number}: the url is {str(url)[:100]!r}, and what works is "
                f"{', '.join(ENDPOINTS)}"
            )
        return spec.model_copy(update={"task": task.model_copy(update={"endpoint": url})})
    raise BadInput(
        f"{infos[0].uri} is no OpenAI batch file: none of its first lines is an object with a url"
    )


def check_unique_ids(infos: Sequence[FileInfo], limit: int | None = None) -> None:
    """BadInput that names both lines of a `custom_id` that stands twice in the rows up to `limit`.

    One pass that keeps 8 bytes a row; a second only where two hashes are equal.
    """
    hashes = array("q", (hash(named.id) for named in _ids(infos, limit)))
    pairs = _equal(np.frombuffer(hashes, np.int64))[:PAIRS_LOOKED_AT]
    wanted = {int(position) for position in pairs.flat}
    found = (
        {at: named for at, named in enumerate(_ids(infos, limit)) if at in wanted} if wanted else {}
    )
    for first, second in ((found[int(one)], found[int(other)]) for one, other in pairs):
        if first.id == second.id:
            raise BadInput(
                f"the custom_id {first.id[:100]!r} stands twice, in {first.line.uri} line "
                f"{first.line.number} and in {second.line.uri} line {second.line.number}: every "
                "request needs one of its own"
            )


def _equal(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of positions with equal hashes, ascending by the second."""
    order = hashes.argsort(kind="stable")
    ordered = hashes[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    pairs: NDArray[np.int64] = np.stack([order[same], order[same + 1]], axis=1)
    by_second: NDArray[np.int64] = pairs[pairs[:, 1].argsort()]
    return by_second


def _ids(infos: Sequence[FileInfo], limit: int | None) -> Iterator[Named]:
    """Every id that can be read; lines without one are errors of their rows, later."""
    for line in islice(_lines(infos), limit):
        found = _id(line)
        if found is not None:
            yield Named(found, line)


def _id(line: Line) -> str | None:
    """Most files begin each line with the id: those lines need not be parsed to their end."""
    match = _FIRST_MEMBER.match(line.text)
    if match is not None and line.text.count(b'"custom_id"') == 1:
        try:
            return match[1].decode("utf-8")
        except UnicodeDecodeError:
            return None
    found = _parsed(line).get("custom_id")
    return found if isinstance(found, str) else None


def _parsed(line: Line) -> dict[str, object]:
    try:
        return parse_line(line.text)
    except ValueError:
        return {}


def _lines(infos: Sequence[FileInfo]) -> Iterator[Line]:
    for info in infos:
        for number, text in enumerate(convert.lines(info.uri), 1):
            if not is_blank(text):
                yield Line(info.uri, number, text)
