"""The thread that runs the event loop of an engine, and the rows of a batch on that loop."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from nightshift.common.errors import EngineDead, EngineUnavailable, StorageUnavailable
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.images import BadImage
from nightshift.worker.engines.protocol import Outcome, Refusal, Request, Work
from nightshift.worker.telemetry.stage import Stage

T = TypeVar("T")

AnswerRow = Callable[[Request, T], Awaitable[Outcome]]
"""Makes the outcome of a row from its request and its prompt."""

RefusalText = Callable[[str], str]
"""Makes the message of a row from the exception that the row raised."""

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

    def close(self, timeout: float) -> None:
        """Cancels every task and ends the thread, in `timeout` seconds together; a second call does
        nothing.
        """
        if self.loop.is_closed():
            return
        ends_at = time.monotonic() + timeout
        with suppress(TimeoutError):
            self.run(cancel_tasks(), timeout)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(max(0.0, ends_at - time.monotonic()))
        if not self._thread.is_alive():
            self.loop.close()


async def run_rows(
    work: Work, prompts: Iterable[tuple[int, T]], answer: AnswerRow[T], refused: RefusalText
) -> None:
    """Runs the rows of a batch side by side, and emits the outcome of each.

    Each prompt comes with the position of its row. A row may be withdrawn until `answer` begins it.
    EngineDead and EngineUnavailable of one row end the others. StorageUnavailable is raised when all
    rows are over. Any other exception is an error of its row alone, with the message that `refused`
    makes.
    """
    began_at = work.recorder.clock()
    sent = list(prompts)
    tasks = [asyncio.create_task(_run_row(work, *each, answer, refused)) for each in sent]
    loop = asyncio.get_running_loop()
    by_row = {
        work.requests[position].row_index: task
        for (position, _), task in zip(sent, tasks, strict=True)
    }

    def drop(rows: Collection[int]) -> None:
        for row in rows:
            loop.call_soon_threadsafe(by_row[row].cancel)

    work.wait(drop, by_row)
    try:
        # gather, not a TaskGroup: gather raises the first error as it is.
        outages = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        work.recorder.stage_passed(Stage.INFER, work.recorder.clock() - began_at)
    for outage in filter(None, outages):
        raise outage


async def _run_row(
    work: Work, position: int, prompt: T, answer: AnswerRow[T], refused: RefusalText
) -> StorageUnavailable | None:
    """Emits the row's outcome, or returns the outage of a store of images. A withdrawn row ends
    without an outcome.
    """
    row_index = work.requests[position].row_index
    try:
        outcome = await answer(work.requests[position], prompt)
    except (EngineDead, EngineUnavailable):
        raise
    except asyncio.CancelledError:
        if work.is_taken_back(row_index):
            return None
        raise
    except StorageUnavailable as error:
        return error
    except BadImage as error:
        outcome = Refusal(RowErrorKind.RENDER_ERROR, str(error))
    except Exception as error:
        outcome = Refusal(
            RowErrorKind.REFUSED, refused(f"{type(error).__name__}: {error}"), of_library=True
        )
    # A row may be refused, or be too late, before it began: from now on nobody withdraws it.
    if work.begin(row_index):
        work.emit(position, outcome)
    return None


async def cancel_tasks() -> None:
    """Cancels every other task of the running loop, and waits for their ends for a moment."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
