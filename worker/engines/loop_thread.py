"""The thread that runs the event loop of an engine, and the rows of a batch on that loop."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from nightshift.common.errors import StorageUnavailable
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.engines.protocol import Work

T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""How long cancelled tasks may take to end."""


class LoopThread:
    """An event loop in a thread of its own, to which other threads hand coroutines."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="engine-loop", daemon=True
        )
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result of a coroutine on the loop; TimeoutError after `timeout` seconds."""
        return self.submit(coroutine).result(timeout)

    def cancel_tasks(self, timeout: float) -> None:
        """Cancels every task of the loop. Returns after `timeout` seconds at the latest."""
        with suppress(TimeoutError):
            self.run(_cancel_tasks(), timeout)

    def close(self, timeout: float) -> None:
        """Cancels every task and ends the thread; a second call does nothing."""
        if self.loop.is_closed():
            return
        self.cancel_tasks(timeout)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.loop.close()


async def run_rows(
    work: Work, rows: Iterable[Coroutine[Any, Any, StorageUnavailable | None]]
) -> None:
    """Runs the rows of a batch side by side.

    An error that one row raises ends the others. An outage that one row returns is raised when all
    rows are over.
    """
    began_at = work.recorder.clock()
    tasks = [asyncio.create_task(row) for row in rows]
    count = 0
    try:
        # gather, not a TaskGroup: gather raises the first error as it is.
        outages = await asyncio.gather(*tasks)
        count = 1
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        seconds = work.recorder.clock() - began_at
        work.recorder.stage_passed(Stage.INFER, seconds, count=count)
    for outage in filter(None, outages):
        raise outage


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
