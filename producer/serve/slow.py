"""Threads for what takes long, so that such work never holds those of requests that are answered at once.

A tenant has a part of the threads, and some of its requests may wait for them; the next one is refused. So
no tenant takes the threads from the others, and what a tenant sends in a burst is done all the same.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from threading import Event
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from nightshift.producer.serve.errors import RETRY_AFTER_SECONDS, ApiError

T = TypeVar("T")

ENTRANCE = CapacityLimiter(8)
"""Threads that ask who comes: nothing else runs in them."""

STORE = CapacityLimiter(40)
"""Threads that read the store for answers."""


class SlowWork:
    """Runs functions in at most `at_once` threads of a server, `a_tenant` of these for one tenant, with
    `waiting` of its requests behind them. Work that ends when its client likes has no bound but that of
    each tenant, `math.inf`. `what` names the work in a refusal.
    """

    def __init__(self, what: str, *, at_once: float, a_tenant: int, waiting: int) -> None:
        self._what, self._a_tenant, self._most = what, a_tenant, a_tenant + waiting
        self._threads = CapacityLimiter(at_once)
        self._here: Counter[str] = Counter()
        self._tenants: dict[str, CapacityLimiter] = {}
        self.ending = Event()
        """Set once the server ends: work that looks ends soon."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[CapacityLimiter]:
        """Waits until the tenant may use a thread; gives the limiter to use. ApiError 429 where too many requests
        of the tenant run or wait.
        """
        if self.ending.is_set():
            raise ApiError(503, "the server ends", type="server_error", code="unavailable")
        if self._here[tenant] >= self._most:
            raise ApiError(
                429,
                f"{self._most} {self._what} of this tenant run or wait here already: send the request "
                "again later",
                type="rate_limit_exceeded",
                code="too_many_at_once",
                headers={"retry-after": str(RETRY_AFTER_SECONDS)},
            )
        self._here[tenant] += 1
        own = self._tenants.setdefault(tenant, CapacityLimiter(self._a_tenant))
        try:
            async with own:
                yield self._threads
        finally:
            self._here[tenant] -= 1
            if not self._here[tenant]:
                del self._here[tenant], self._tenants[tenant]

    async def run(self, tenant: str, work: Callable[..., T], *given: object) -> T:
        """What the function gives, called for a tenant in one of the threads."""
        async with self.turn(tenant) as threads:
            return await to_thread.run_sync(work, *given, limiter=threads)


async def from_store(pieces: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """The same pieces, each read in a thread of STORE; whoever leaves ends the reading."""
    try:
        while (piece := await to_thread.run_sync(next, pieces, None, limiter=STORE)) is not None:
            yield piece
    finally:
        if isinstance(pieces, Generator):
            pieces.close()
