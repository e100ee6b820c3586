"""A file of the store that is written as its bytes come, by a thread of its own."""

import asyncio
import queue
from typing import Any, BinaryIO, Self

from starlette.concurrency import run_in_threadpool

from nightshift.common import storage
from nightshift.producer.gateway.errors import ApiError

PIECES_AHEAD = 8
"""Pieces that wait for the store; a client that is faster waits."""


class FileWriter:
    """Writes a file whole or not at all: one that is not finished leaves nothing under its name.

    ApiError 413 beyond `most_bytes`.
    """

    def __init__(self, uri: str, most_bytes: int) -> None:
        self._uri, self._most_bytes, self._bytes = uri, most_bytes, 0
        self._pieces: queue.Queue[bytes | None] = queue.Queue(PIECES_AHEAD)
        self._writing: asyncio.Task[Any] | None = None
        self._gave_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._writing is not None and not self._writing.done():
            self._gave_up = True
            await self._put(None)
            await asyncio.gather(self._writing, return_exceptions=True)

    async def open(self) -> None:
        """Begins to write."""
        self._writing = asyncio.create_task(
            run_in_threadpool(storage.write_whole, self._uri, self._fill)
        )

    async def write(self, data: bytes) -> None:
        """Takes a piece; waits while the store is slower than the client."""
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            raise ApiError(
                413, f"the file has more than {self._most_bytes:,} bytes", code="file_too_large"
            )
        await self._put(bytes(data))

    async def finish(self) -> None:
        """Waits until every byte is stored; raises what the store raised."""
        await self._put(None)
        assert self._writing is not None
        await self._writing

    async def _put(self, piece: bytes | None) -> None:
        assert self._writing is not None
        while not self._writing.done():
            try:
                self._pieces.put_nowait(piece)
            except queue.Full:
                await asyncio.sleep(0.005)
            else:
                return
        await self._writing

    def _fill(self, sink: BinaryIO) -> None:
        while (piece := self._pieces.get()) is not None:
            sink.write(piece)
        if self._gave_up:
            raise GaveUp(self._uri)


class GaveUp(Exception):
    """The client did not send the whole file."""
