"""`/v1/batches/{id}/results`: lines of results while a batch runs, from parts that are committed."""

from collections.abc import Iterator

import structlog
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nightshift.common.errors import SourceChanged
from nightshift.common.ledger.connection import Row
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.serve.calls import Call, route
from nightshift.producer.serve.errors import ApiError, not_found
from nightshift.producer.serve.ledger import api_batches, fresh_parts
from nightshift.producer.serve.slow import from_store

log = structlog.get_logger(__name__)

CURSOR = "x-nightshift-cursor"
"""Header of the answer with the cursor of the next request."""

PIECE_BYTES = 64 * 1024
"""Bytes of lines that are sent together, at least."""


def stream_results(call: Call) -> Response:
    """The lines that came since the cursor `after`; a row that ran again comes again.

    A line is that of the file of answers or of errors. The header x-nightshift-cursor is the next
    `after`, once every line of this answer has come.
    """
    given = call.query.get("after", "0")
    if not given.isascii() or not given.isdigit() or len(given) > 19:
        raise ApiError(
            400,
            f"after is {given[:30]!r}, but must be a cursor, as the header x-nightshift-cursor has it",
            param="after",
        )
    with call.ledger.transaction() as connection:
        batch = api_batches.get(connection, call.caller.tenant, call.path["id"])
        if batch is None:
            raise not_found("batch", call.path["id"])
        job = jobs.get(connection, batch.job_id)
        if batch.job_id is None:
            return _answer(iter(()), int(given))
        if job is None or api_batches.results_gone(connection, batch.id):
            raise _gone("the results of the batch are deleted or expired")
        if jobs.is_archived(connection, job.id):
            files = [id for id in (batch.output_file_id, batch.error_file_id) if id is not None]
            raise _gone(f"the parts are archived: every line is in {' and '.join(files)}")
        fresh = fresh_parts.since(connection, job.id, int(given))
    return _answer(_lines(job, fresh.parts), fresh.cursor)


def _gone(why: str) -> ApiError:
    return ApiError(404, why, param="id", code="results_gone")


def _answer(lines: Iterator[bytes], cursor: int) -> Response:
    headers = {CURSOR: str(cursor)}
    return StreamingResponse(
        from_store(_pieces(lines)), headers=headers, media_type="application/jsonl"
    )


def _pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines, many at once: each piece costs a change of threads, as much as six lines (measured)."""
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _lines(job: Job, parts: list[Row]) -> Iterator[bytes]:
    """The lines of each part. One that a retry has replaced meanwhile is left out: the new one has a
    later commit, and comes with the next request.
    """
    # They load Arrow, which takes as much memory as the rest of the server.
    from nightshift.producer.results import openai_batch_results, part_files

    for part in parts:
        try:
            rows = part_files.kept_rows(job, part)
            for line, _ in openai_batch_results.lines(job, rows):
                yield line
        except SourceChanged as error:
            log.info("part_replaced", job_id=job.id, why=str(error))


ROUTES: list[Route] = [
    route(
        "GET", "/v1/batches/{id}/results", stream_results, "viewer", query=("after",), binary=True
    ),
]
