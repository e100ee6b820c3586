"""A file of the store that is written as its bytes come, by a thread of its own."""

import asyncio
import queue
from typing import BinaryIO, Self

from anyio import CapacityLimiter, to_thread

from nightshift.common import storage
from nightshift.producer.serve.errors import ApiError

PIECES_AHEAD = 8
"""Pieces that wait for the store; a client that is faster waits."""


class FileWriter:
    """Writes a file whole or not at all, in one of `threads`: one that is not finished leaves nothing under
    its name.

    ApiError 413 beyond `most_bytes`, if that is set, 429 beyond the `room` that the tenant has for so many.
    """

    def __init__(
        self, uri: str, most_bytes: int | None, threads: CapacityLimiter, *, room: int | None = None
    ) -> None:
        self._threads, self.room = threads, room
        self._uri, self._most_bytes, self._bytes = uri, most_bytes, 0
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(PIECES_AHEAD)
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[object] | None = None
        self._gave_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._writing is not None and not self._writing.done():
            self._gave_up = True
            self._pieces.put(None)
            await asyncio.gather(self._writing, return_exceptions=True)

    async def open(self) -> None:
        """Begins to write."""
        self._writing = asyncio.create_task(
            to_thread.run_sync(storage.write_streamed, self._uri, self._fill, limiter=self._threads)
        )
        # Whoever waits for room hears that the store has failed.
        self._writing.add_done_callback(lambda _: self._room.release())

    async def write(self, data: bytes) -> None:
        """Takes a piece; waits while the store is slower than the client; raises what the store raised."""
        self._bytes += len(data)
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise ApiError(
                413, f"the file has more than {self._most_bytes:,} bytes", code="file_too_large"
            )
        if self.room is not None and self._bytes > self.room:
            said = "the bytes of the file are more than this tenant may store, or than its request has said"
            raise ApiError(
                429,
                said,
                type="insufficient_quota",
                code="storage_limit_exceeded",
                retried=False,
            )
        assert self._writing is not None
        await self._room.acquire()
        if self._writing.done():
            await self._writing
        self._pieces.put(bytes(data))

    async def finish(self) -> None:
        """Waits until every byte is stored; raises what the store raised."""
        assert self._writing is not None
        self._pieces.put(None)
        await self._writing

    def _fill(self, sink: BinaryIO) -> None:
        while (piece := self._pieces.get()) is not None:
            sink.write(piece)
            self._loop.call_soon_threadsafe(self._room.release)
        if self._gave_up:
            raise GaveUp(self._uri)


class GaveUp(Exception):
    """The client did not send the whole file."""
