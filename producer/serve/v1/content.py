"""`/v1/files/{id}/content`: the bytes of a file, whole or one range, in pieces as the client takes them.

A client that takes its time holds an open file and a piece of memory, and no thread and no connection
of the ledger.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nightshift.common import storage
from nightshift.common.text import counted
from nightshift.producer.serve.calls import Call, route
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.headers import has_current
from nightshift.producer.serve.ledger import files
from nightshift.producer.serve.slow import STORE, from_store

PIECE_BYTES = 256 * 1024
"""Bytes of one piece; larger ones are not faster (measured)."""

ONE_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The status of the answer, and its bytes: from `start` to before `end` of the file."""

    status: int
    start: int
    end: int


def wanted(headers: Mapping[str, str], size: int, etag: str) -> Wanted:
    """What a request with these headers gets of a file of `size` bytes: 304 where the client has the
    file, 206 for one range, 416 for a range that is not in the file, else 200 and every byte.

    Several ranges, and what is no range, get every byte, as RFC 9110, chapter 14, allows.
    """
    if has_current(headers, etag):
        return Wanted(304, 0, 0)
    whole = Wanted(200, 0, size)
    found = ONE_RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", etag) != etag:
        return whole
    first, last, length = (None if each is None else int(each or size) for each in found.groups())
    if length is not None:
        start, end = max(0, size - length), size
    else:
        assert first is not None
        assert last is not None
        if last < first and last < size:
            return whole
        start, end = first, min(last + 1, size)
    return Wanted(206, start, end) if start < end else Wanted(416, 0, 0)


def file_content(call: Call) -> Response:
    """The bytes of a file, or the one range of them that the request names."""
    with call.ledger.transaction() as connection:
        found = files.get(connection, call.caller.tenant, call.path["id"])
    if found is None:
        raise not_found("file", call.path["id"])
    etag = f'"{found.id}"'  # the bytes of a file never change
    want = wanted(call.headers, found.bytes, etag)
    headers = {"accept-ranges": "bytes", "etag": etag}
    if want.status == 304:
        return Response(status_code=304, headers=headers)
    if want.status == 416:
        said = f"the file has {counted(found.bytes, 'byte')}, and the range is not among them"
        raise ApiError(
            416, said, param="range", headers={"content-range": f"bytes */{found.bytes}"}
        )
    headers["content-length"] = str(want.end - want.start)
    if want.status == 206:
        headers["content-range"] = f"bytes {want.start}-{want.end - 1}/{found.bytes}"
    kind = "application/octet-stream"
    if call.method == "HEAD":
        return Response(None, want.status, headers, media_type=kind)
    handle = storage.open_input(found.uri, sequential=True)
    handle.seek(want.start)
    pieces = _pieces(handle, want.end - want.start)
    return StreamingResponse(from_store(pieces), want.status, headers, media_type=kind)


def _pieces(handle: BinaryIO, left: int) -> Iterator[bytes]:
    with handle:
        while left and (piece := handle.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece


ROUTES: list[Route] = [
    route(
        "GET",
        "/v1/files/{id}/content",
        file_content,
        "viewer",
        threads=STORE,
        binary=True,
        statuses=(200, 206),
    ),
]
