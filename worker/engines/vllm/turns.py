"""Turns for requests that must not be in one step of vLLM.

vLLM 0.32 tells either the log probabilities of the likeliest tokens or those of named tokens in a step: where one
request of a step names tokens, the others get no likeliest ones (`vllm/v1/sample/sampler.py`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

LIKELIEST = "likeliest"
NAMED = "named"


class Turns:
    """Requests of one kind run together, those of another wait until they are over, in the order in which they
    came. Requests of no kind run at any time. For one event loop.
    """

    def __init__(self) -> None:
        self._kind: str | None = None
        self._running = 0
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    def turn(self, kind: str | None) -> AbstractAsyncContextManager[None]:
        """Holds a turn of this kind."""
        return nullcontext() if kind is None else self._turn(kind)

    @asynccontextmanager
    async def _turn(self, kind: str) -> AsyncIterator[None]:
        await self._enter(kind)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, kind: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, place))
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._admit()
            else:
                self._leave()
            raise

    def _leave(self) -> None:
        self._running -= 1
        self._admit()

    def _admit(self) -> None:
        if not self._running:
            self._kind = None
        while self._waiting:
            kind, place = self._waiting[0]
            if not place.cancelled():
                if self._kind not in (None, kind):
                    return
                self._kind = kind
                self._running += 1
                place.set_result(None)
            self._waiting.popleft()
