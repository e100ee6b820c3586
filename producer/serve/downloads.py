"""Results of a job sent while they are made, for the console and the HTTP API.

Who takes them has a turn of the tenant as long as they last, and a thread for one piece at a time alone: a client
that takes its time holds no thread, and one that takes nothing is cut off as any other (`connections`). What goes
wrong before the first byte is an answer with a sentence. What goes wrong later ends the connection without the
last chunk, so that no client takes what it has for the whole.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import structlog
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nightshift.common.errors import SourceChanged
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.serve.calls import Context
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger.keys import Caller
from nightshift.producer.serve.slow import from_store

if TYPE_CHECKING:
    from nightshift.producer.results.download import Download, Kind

log = structlog.get_logger(__name__)

MEDIA_TYPES: dict["Kind", str] = {
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8; header=present",
}
"""Formats of a file, and what a client is told that the file is."""

SAMPLE_ROWS = 1000
"""Rows of a sample, the first that have an outcome."""

QUERY = ("format", "partial", "sample")

MOST_NAME = 150

_HELD = re.compile(r"[\x00-\x1f\x7f-\x9f/\\\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""What no name of a file has: control characters, folders, half characters, and marks that turn the direction of
the text around, such as that of a suffix."""


class Transfer(StreamingResponse):
    """An answer that has a turn until its last byte, or until its client has left."""

    def __init__(self, pieces: Iterator[bytes], held: AsyncExitStack, **given: Any) -> None:
        self._read, self._held = from_store(pieces), held
        super().__init__(self._read, **given)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        async with self._held, aclosing(self._read):
            try:
                await super().__call__(scope, receive, send)
            except Exception as error:
                # Raised on, it ends the connection.
                log.warning("download_broken", path=scope["path"], why=str(error))
                raise


async def transfer(
    request: Request, context: Context, caller: Caller, find: Callable[[], Job]
) -> Transfer:
    """The results of the job that `find` finds, as the request wants them: `format`, `partial`, `sample`.

    ApiError 400 for what is no such file, 404 where parts are gone, 429 where the tenant takes too many, 505 for
    HTTP/1.0; raises what `download.prepare` does.
    """
    wanted = _wanted(request.query_params)
    if request.scope["http_version"] == "1.0":
        raise ApiError(
            505,
            "results come in chunks, and HTTP/1.0 has none: their end looks as if the connection broke. Send the "
            "request by HTTP/1.1 (nginx: proxy_http_version 1.1)",
        )
    async with AsyncExitStack() as held:
        await held.enter_async_context(context.downloads.turn(caller.tenant))
        is_head = request.method == "HEAD"
        found, pieces = await context.reads.run(
            caller.tenant, _begun, context, find, wanted, is_head
        )
        headers = {
            "content-disposition": attachment(found.name),
            "cache-control": "no-store",
            "x-nightshift-rows": str(found.rows),
            "x-nightshift-rows-total": str(found.rows_total),
        }
        return Transfer(pieces, held.pop_all(), headers=headers, media_type=MEDIA_TYPES[found.kind])


def attachment(name: str) -> str:
    """The header by which a browser saves an answer under a name (RFC 6266): as it is for those that read UTF-8,
    and without what is not ASCII for all others.
    """
    stem, dot, suffix = name.rpartition(".")
    safe = _HELD.sub("_", f"{stem[:MOST_NAME]}{dot}{suffix}").lstrip(".")
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", safe)
    wide = "" if plain == safe else f"; filename*=UTF-8''{quote(safe, safe='')}"
    return f'attachment; filename="{plain}"{wide}'


def _wanted(query: QueryParams) -> dict[str, Any]:
    """What `download.prepare` is asked for; ApiError 400 for anything else."""
    kind = query.get("format", "jsonl")
    if kind not in MEDIA_TYPES:
        known = ", ".join(MEDIA_TYPES)
        raise ApiError(400, f"format is {kind[:30]!r}, but must be one of {known}", param="format")
    sample = SAMPLE_ROWS if _is_set(query, "sample") else None
    return {"kind": kind, "partial": _is_set(query, "partial"), "sample": sample}


def _is_set(query: QueryParams, name: str) -> bool:
    given = query.get(name, "false")
    if given not in ("true", "false"):
        raise ApiError(400, f"{name} is {given[:30]!r}, but must be true or false", param=name)
    return given == "true"


def _begun(
    context: Context,
    find: Callable[[], Job],
    wanted: dict[str, Any],
    is_head: bool,
) -> tuple["Download", Iterator[bytes]]:
    """The file, and its pieces, of which the first is made: what cannot be read at all is an answer."""
    from nightshift.producer.results import download  # loads Arrow

    found = download.prepare(context.ledger, find(), **wanted)
    if is_head:
        return found, iter(())
    pieces = found.pieces()
    try:
        first = next(pieces)
    except SourceChanged as error:
        raise ApiError(
            404, error.public_message(found.job.own), param="id", code="results_gone"
        ) from error
    return found, _with(first, pieces)


def _with(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces
