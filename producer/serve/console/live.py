"""Pages that change while a browser shows them: one poller a process looks once a second for all of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from starlette.concurrency import run_in_threadpool

from nightshift.common.errors import NightshiftError

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""Pause between two looks."""

QUIET_SECONDS = 15.0
"""After this time without a change, browsers that follow a view are told that there was none."""

MOST_LOOKS = 8
"""Looks at once: threads that a server has for other requests, too."""

Look = Callable[[], str]
"""What a page shows now, as HTML; asks the ledger, and runs in a thread."""


@dataclass(slots=True)
class View:
    """What some browsers look at, how many they are, and what it shows now."""

    look: Look
    watchers: int = 0
    version: int = 0
    html: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    looking: asyncio.Task[None] | None = None


class Live:
    """The views that browsers follow. Two browsers with the same key share one view and its look."""

    def __init__(self) -> None:
        self._views: dict[Hashable, View] = {}
        self._poller: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(MOST_LOOKS)

    @property
    def is_idle(self) -> bool:
        """Whether no browser follows a view, and the poller has ended."""
        return not self._views and (self._poller is None or self._poller.done())

    async def follow(self, key: Hashable, look: Look) -> AsyncGenerator[str | None]:
        """What the page shows, now and each time that it has changed; None after QUIET_SECONDS without
        a change.
        """
        view = self._views.setdefault(key, View(look))
        view.watchers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        seen = 0
        try:
            while True:
                html = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_SECONDS), view.changed:
                        while view.version == seen:
                            await view.changed.wait()
                        seen, html = view.version, view.html
                yield html
        finally:
            view.watchers -= 1
            if not view.watchers and self._views.get(key) is view:
                del self._views[key]

    async def _poll(self) -> None:
        """Looks at every view, again and again; ends when no browser follows one."""
        while self._views:
            for view in list(self._views.values()):
                # A look that takes long holds up no other view.
                if view.looking is None or view.looking.done():
                    view.looking = asyncio.create_task(self._refresh(view))
            running = [view.looking for view in self._views.values() if view.looking is not None]
            if running:
                await asyncio.wait(running, timeout=LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def _refresh(self, view: View) -> None:
        try:
            async with self._room:
                html = await run_in_threadpool(view.look)
        except NightshiftError as error:
            log.info("console_look_failed", why=str(error))
            return
        except Exception:
            log.exception("console_look_crashed")
            return
        if html != view.html:
            async with view.changed:
                view.html, view.version = html, view.version + 1
                view.changed.notify_all()
