"""Parts of pages that browsers ask for again and again: those who see the same share one look at the ledger."""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

FRESH_SECONDS = 0.9
"""For so long a look answers every browser; an open page asks once a second."""

KEPT_SECONDS = 10.0
"""A view that no browser has asked for in this time is forgotten."""

MOST_LOOKS = 8
"""Looks at once: threads that a server has for other requests, too."""

Look = Callable[[], str]
"""Return what a page shows now, as HTML; asks the ledger, and runs in a thread."""

Begin = Callable[[], Look]
"""Return the look of a view that no browser has seen yet; runs in a thread, too."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a view shows; `etag` differs if the HTML does."""

    html: str
    etag: str


@dataclass(slots=True)
class View:
    """What some browsers see; `looking` is the last look at it, which may be under way. Times are monotonic
    seconds; `ended_at` is infinite during a look.
    """

    begin: Begin
    look: Look | None = None
    looking: asyncio.Task[Shown] | None = None
    ended_at: float = -math.inf
    asked_at: float = -math.inf


class Views:
    """The views that browsers ask for, by keys: two browsers with the same key share a look."""

    def __init__(self) -> None:
        self._views: dict[Hashable, View] = {}
        self._threads = CapacityLimiter(MOST_LOOKS)

    async def shown(self, key: Hashable, begin: Begin) -> Shown:
        """Return what the view shows, by the look that is under way or ended a moment ago, else by a new one. Raises
        what `begin` or the look raised.
        """
        now = time.monotonic()
        self._views = {
            each: view
            for each, view in self._views.items()
            if now - max(view.asked_at, view.ended_at) < KEPT_SECONDS
        }
        view = self._views.setdefault(key, View(begin))
        view.asked_at = now
        if view.looking is None or now - view.ended_at > FRESH_SECONDS:
            view.ended_at = math.inf
            view.looking = asyncio.create_task(self._look(view))
        return await asyncio.shield(view.looking)  # a browser that leaves ends the look of no other

    async def _look(self, view: View) -> Shown:
        try:
            return await to_thread.run_sync(_shown, view, limiter=self._threads)
        finally:
            view.ended_at = time.monotonic()


def _shown(view: View) -> Shown:
    view.look = view.look or view.begin()
    html = view.look()
    return Shown(html, f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"')
