"""The function engine: a Python callable over a list of rows, one call at a time."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pyarrow as pa
import structlog

from nightshift.common.errors import EngineEnded, EngineGone, EngineLoadFailed, EngineNotHere
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings, function_environment
from nightshift.common.spec import FunctionEngineSpec, Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.function.answers import Found
from nightshift.worker.engines.function.call_size import CallSize
from nightshift.worker.engines.function.host_process import Host, HostDied, HostProcess, Setup
from nightshift.worker.engines.protocol import Outcome, Refusal, Work
from nightshift.worker.telemetry.stage import Stage

log = structlog.get_logger(__name__)

CONCURRENT_ROWS = 64
"""Rows that may wait for the running call to end, so that one-row batches leave no gap."""

MOST_DEATHS = 32
"""Processes that may end over one batch under one lease. The first row that ends them takes log2 of the
batch and two more to be found: 10 of them in a batch of 256 rows."""

LEAST_RESTART_SECONDS = 60.0
RESTART_LOADS = 3.0
"""A process that is started again may load for LEAST_RESTART_SECONDS, or for RESTART_LOADS times what the first
load took, whichever is longer."""

GATHER_SECONDS = 0.005
"""How long a quick function waits for more small batches, whose calls then share a message: a thread
that wakes for each of them would fight with the others for Python's lock."""


@dataclass(slots=True, eq=False)
class Calls:
    """The calls of one batch so far, and how many processes ended.

    `early` is what its first call gave, where that was made together with calls of other batches;
    `alone` is True once a host ended over them.
    """

    work: Work
    rows: pa.Table
    deaths: int = 0
    early: Found | None = None
    alone: bool = False


class FunctionEngine:
    """Calls `function(rows)` with a list of row dicts; it returns as many dicts.

    The function lives in a host, a process that is started again when it ended. Of a class one
    instance is made in each, with `engine.args`.
    """

    name = "function"
    revision: str | None = None
    cache_tokens: int | None = None
    concurrency = CONCURRENT_ROWS

    def __init__(
        self, where: str, start: Callable[[float], Host], call_timeout_seconds: float | None = None
    ) -> None:
        """`start` makes a host within so many seconds; `where` names the function in messages.

        EngineLoadFailed when the function cannot be loaded.
        """
        self.version = f"python {sys.version_info.major}.{sys.version_info.minor}"
        self._where = where
        self._start_host = start
        self._call_seconds = call_timeout_seconds or math.inf
        self._closed = False
        self._gone: str | None = None
        self._size = CallSize()
        began = time.monotonic()
        self.host = start(math.inf)
        self.code = self.host.code
        took = time.monotonic() - began
        self._restart_seconds = max(LEAST_RESTART_SECONDS, RESTART_LOADS * took)
        self._waiting: deque[Calls] = deque()
        self._starting = threading.Lock()
        # The host serves one call at a time: the thread takes the batches in their order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="function")

    @classmethod
    def load(cls, spec: FunctionEngineSpec, settings: Settings) -> Self:
        """Loads the callable in a process of its own.

        EngineNotHere when the module is not allowed, EngineLoadFailed when the name is missing or not
        callable, or when the instance of a class cannot be made.
        """
        if spec.module not in settings.allowed_modules:
            raise EngineNotHere(
                f"the module {spec.module!r} is not allowed on this worker: its operator lists "
                "modules in NIGHTSHIFT_ALLOWED_MODULES"
            )
        setup = Setup(
            callable=spec.callable,
            args=spec.args,
            folders=settings.callable_paths,
            environment=function_environment(settings),
            memory_bytes=settings.function_memory_bytes,
            log_level=settings.log_level,
        )
        return cls(spec.callable, partial(HostProcess, setup), spec.call_timeout_seconds)

    def resolve(self, task: Task) -> Mapping[str, Any]:
        """Nothing: no answer depends on what is loaded here."""
        return {}

    def start(self, work: Work) -> "Future[None]":
        """Queues one call for the batch. An exception, a wrong number of results and a call that
        does not come back are isolated by halving. Once MOST_DEATHS processes ended, the rows that
        are left have no outcome; by then at least one row was found.
        """
        rows = len(work.requests)
        work.recorder.rows_entered(rows)
        calls = Calls(work, work.rows)
        work.wait(lambda _: None, [request.row_index for request in work.requests])
        with self._starting:
            self._waiting.append(calls)
            return self._thread.submit(self._run, calls, work.recorder.clock())

    def stalled_seconds(self) -> float:
        """0: a call that takes too long is ended here, and its host with it."""
        return 0.0

    def close(self) -> None:
        """Starts no further call, and ends the host at once."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.host.close()

    def _run(self, calls: Calls, started_at: float) -> None:
        work, rows = calls.work, calls.work.begin_all()
        try:
            if calls.early is None and not work.stopped.is_set() and rows:
                self._call_ahead()
        finally:
            self._waiting.popleft()
        work.recorder.stage_passed(Stage.QUEUE, work.recorder.clock() - started_at)
        try:
            with work.recorder.span(Stage.INFER):
                self._run_rows(calls, 0, rows)
            if calls.deaths >= MOST_DEATHS:
                log.warning("function_hosts_spent", rows=rows, hosts=calls.deaths)
        finally:
            work.recorder.rows_left(len(work.requests))

    def _call_ahead(self) -> None:
        """Makes the first calls of small batches that wait in one message, while calls are quick."""
        if self.host.row_seconds * CONCURRENT_ROWS > GATHER_SECONDS:
            return
        if sum(len(each.work.requests) for each in list(self._waiting)) < CONCURRENT_ROWS:
            time.sleep(GATHER_SECONDS)
        together: list[Calls] = []
        rows = 0
        for each in list(self._waiting):
            own = each.work.rows_left
            rows += own
            fits = rows <= CONCURRENT_ROWS and own <= self._size.most_rows
            alike = not together or each.rows.schema.equals(together[0].rows.schema)
            if not own or not fits or each.alone or each.work.stopped.is_set() or not alike:
                break
            together.append(each)
        if len(together) < 2:
            return
        sizes = [each.work.begin_all() for each in together]
        if 0 in sizes:  # withdrawn at this moment
            return
        limit = min(
            self._limit(each.work, size) for each, size in zip(together, sizes, strict=True)
        )
        given = [each.rows.slice(0, size) for each, size in zip(together, sizes, strict=True)]
        table = pa.concat_tables(given).combine_chunks()

        def unwanted() -> bool:
            return all(each.work.stopped.is_set() for each in together)

        try:
            found = self._ready_host().call(table, sizes, limit, unwanted)
        except HostDied as died:  # each of them is called by itself now
            for each in together:
                each.alone = True
            log.warning("function_host_ended", rows=len(table), error=str(died))
            return
        for each, early in zip(together, found, strict=True):
            each.early = early

    def _limit(self, work: Work, rows: int) -> float:
        """Seconds that a call with so many rows of a batch may take."""
        return min(self._call_seconds, work.row_timeout_seconds * rows)

    def _run_rows(self, calls: Calls, start: int, stop: int) -> bool:
        """Calls the function with these rows, then with each half of them while a call gives no
        answers; True when none of the rows ended a host by itself.
        """
        work, rows = calls.work, stop - start
        if work.stopped.is_set() or self._closed or not rows:
            return True
        deaths = calls.deaths
        if calls.early is not None or rows <= self._size.most_rows:
            found = self._answers(calls, start, stop)
            if not isinstance(found, Refusal):
                work.emit_all(range(start, start + len(found)), found)
                return True
            if rows == 1:
                work.emit(start, found)
                return calls.deaths == deaths
            if rows == len(work.requests):
                log.warning("batch_is_halved", rows=rows, error=found.message)
                work.remark = f"batches are called in halves, which is slow: {found.message}"
        died, middle = calls.deaths > deaths, (start + stop) // 2
        harmless = self._run_rows(calls, start, middle)
        harmless &= self._run_rows(calls, middle, stop)
        all_ran = calls.deaths < MOST_DEATHS and not work.stopped.is_set()
        if died and harmless and all_ran:
            self._size.too_large(rows)
        return harmless

    def _answers(self, calls: Calls, start: int, stop: int) -> list[Outcome] | Refusal:
        """The outcomes of one call, or why it gave no answers. None where nobody wants them any more, or
        where the processes of the batch are spent.

        A single row is called twice: the first end of a host may have another cause.
        """
        rows = stop - start
        if (early := calls.early) is not None:
            calls.early = None
            return self._judged(early)
        stopped, limit = calls.work.stopped, self._limit(calls.work, rows)
        message = ""
        for _ in range(2 if rows == 1 else 1):
            if calls.deaths >= MOST_DEATHS:
                return []
            try:
                host = self._ready_host()
            except EngineGone as gone:
                if calls.deaths or calls.alone:
                    raise EngineEnded(marked(gone)) from gone
                raise
            if stopped.is_set():  # while the host was started
                return []
            try:
                given = calls.rows.slice(start, rows)
                (found,) = host.call(given, [rows], limit, stopped.is_set)
            except HostDied as died:
                if self._closed:
                    return []
                log.warning("function_host_ended", rows=rows, error=str(died))
                if stopped.is_set():
                    return []
                calls.deaths += 1
                message = f"{self._where} did not come back: {died}"
                if died.was_late:
                    break
            else:
                self._size.fitted(rows)
                return self._judged(found)
        return Refusal(RowErrorKind.ENGINE_DIED, message)

    def _judged(self, found: Found) -> list[Outcome] | Refusal:
        return Refusal(RowErrorKind.FUNCTION_ERROR, found) if isinstance(found, str) else found

    def _ready_host(self) -> Host:
        """The host, started again where the last one is over; EngineGone once none can be started: the
        load of the next child says whose matter the error is.
        """
        if self._gone is not None:
            raise EngineGone(self._gone)
        if not self.host.is_over:
            return self.host
        self.host.close()
        try:
            self.host = self._start_host(self._restart_seconds)
        except EngineLoadFailed as error:
            self._gone = f"the function's process cannot be started again: {marked(error)}"
            raise EngineGone(self._gone) from error
        if self.host.code != self.code:
            # Rows count for the version that this child has registered.
            self._gone = "the function's code changed: another child loads it"
            self.host.close()
            raise EngineGone(self._gone)
        if self._closed:
            self.host.close()
        return self.host
