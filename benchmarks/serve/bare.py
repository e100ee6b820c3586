"""The yardstick of `make bench-serve`: the same frame and the same server, and nothing behind them.

Polls and creates get a constant. A body is written to a file as it comes, and a file is sent, without
an owner, a name or a ledger. Run as `python -m benchmarks.serve.bare PORT FOLDER`.
"""

import os
import sys
from pathlib import Path
from typing import BinaryIO

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

COUNTS = {"total": 1000, "completed": 10, "failed": 0}
BATCH = {
    "id": "batch_" + "0" * 32,
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "input_file_id": "file-" + "0" * 32,
    "completion_window": "24h",
    "status": "in_progress",
    "created_at": 1_790_000_000,
    "request_counts": COUNTS,
    "metadata": None,
}

ANSWER = {
    "id": "chat-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "An answer of medium length. " * 10},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 60, "total_tokens": 70},
}
"""What the model of the benchmark's batch answers: this server is its engine as well."""


def build(folder: Path) -> Starlette:
    """The application; its addresses are those of the HTTP API."""

    async def constant(_request: Request) -> Response:
        return JSONResponse(BATCH)

    async def answered(_request: Request) -> Response:
        return JSONResponse(ANSWER)

    async def models(_request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m"}]})

    async def taken(request: Request) -> Response:
        with (folder / "bare").open("wb") as file:
            async for piece in request.stream():
                file.write(piece)
            await run_in_threadpool(_sync, file)
        return JSONResponse({"id": "bare"})

    async def sent(_request: Request) -> Response:
        return FileResponse(folder / "bare")

    return Starlette(
        routes=[
            Route("/healthz", constant),
            Route("/v1/batches", constant, methods=["POST"]),
            Route("/v1/batches/{id}", constant),
            Route("/v1/files", taken, methods=["POST"]),
            Route("/v1/files/{id}/content", sent),
            Route("/v1/models", models),
            Route("/v1/chat/completions", answered, methods=["POST"]),
        ]
    )


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def main(port: str, folder: str) -> None:
    """Serves until it is killed."""
    uvicorn.run(
        build(Path(folder)), port=int(port), log_config=None, access_log=False, server_header=False
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
