"""The recorder: the core of a child tells what happens, and subscribers count, measure or log it.

What no subscriber wants costs next to nothing.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from nightshift.common.ledger.fleet.outages import Kind
from nightshift.worker.telemetry.stage import Stage


@dataclass(slots=True)
class EngineLoaded:
    """The engine is ready, and the child can claim."""

    engine: str
    version: str
    concurrency: int
    window_rows: int
    load_seconds: float


@dataclass(slots=True)
class BatchCommitted:
    """A batch is committed: `part_rows` rows and `part_errors` of them failed are in its part.

    `rows` and `rows_failed` are those that ran, without the rows that a retry kept; `rows_shared` of
    them have the answer of another row. `cached_tokens` of the prompt tokens were in the engine's cache,
    `reasoning_tokens` of the output tokens are thoughts.
    `seconds` are counted from the claim. `whole` is False where unfinished rows were split off.
    """

    batch_id: int
    attempt: int
    part_rows: int
    part_errors: int
    rows: int
    rows_failed: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    whole: bool
    cached_tokens: int = 0
    rows_shared: int = 0
    reasoning_tokens: int = 0


class Subscriber:
    """What happens in a child: one method an event, which does nothing here.

    A subscriber has the methods of the events that it wants. They are called in the thread of the
    event, and must not fail.
    """

    def stage_passed(self, stage: Stage, seconds: float) -> None:
        """Batches (for QUEUE in vLLM: a row) went through a stage, or tried to."""

    def rows_entered(self, rows: int = 1) -> None:
        """So many rows are the engine's from here on; a row counts once for each of its samples."""

    def rows_left(self, rows: int = 1) -> None:
        """So many rows left the engine, answered or not."""

    def engine_loaded(self, loaded: EngineLoaded) -> None:
        """The engine is ready."""

    def batches_claimed(self, batches: int) -> None:
        """A claim was answered: the child holds `batches` batches more; 0: no batch is admitted."""

    def batch_committed(self, batch: BatchCommitted) -> None:
        """A batch is committed."""

    def batch_ended(self, outcome: str | None = None) -> None:
        """The child holds a batch no more.

        `outcome` is released, failed or lost; None after a commit, or when the ledger could not be
        told.
        """

    def lease_lost(self, batch_id: int, attempt: int) -> None:
        """The lease of a batch belongs to another worker."""

    def leases_renewed(self, held: int, lost: int) -> None:
        """A heartbeat was answered: `held` leases hold, and `lost` leases were newly found lost."""

    def heartbeat_failed(self, error: Exception) -> None:
        """Postgres did not answer a heartbeat."""

    def waits(self, kind: Kind, job_id: int | None, why: str, hold_seconds: float) -> None:
        """The child waits for the storage of a job, or, without a job, for what its engine needs; it is
        heard of again within `hold_seconds` unless that is over.
        """

    def went_on(self, kind: Kind, job_id: int | None) -> None:
        """What the child may have waited for is there."""

    def problem(self, name: str, **fields: Any) -> None:
        """Something went wrong and the child goes on; `name` is a constant."""

    def crash(self, name: str, error: BaseException, **fields: Any) -> None:
        """An exception that nobody expected; `name` is a constant."""


EVENTS = tuple(name for name in vars(Subscriber) if not name.startswith("_"))


class Recorder(Subscriber):
    """Tells subscribers what happens in one child. For any thread; the clock is in seconds.

    Subscribe before the first event: a subscriber hears only of what comes after.
    """

    def __init__(
        self, *subscribers: Subscriber, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self.thread = threading.local()
        for name in EVENTS:
            handlers = [
                getattr(each, name)
                for each in subscribers
                if getattr(type(each), name) is not getattr(Subscriber, name)
            ]
            if handlers:  # a row must not pay for a loop over one subscriber
                setattr(self, name, handlers[0] if len(handlers) == 1 else _in_turn(handlers))
        self._measures = "stage_passed" in vars(self)

    def span(self, stage: Stage) -> "Span":
        """A pass of batches through a stage, to be used with `with`."""
        return Span(self, stage) if self._measures else UNMEASURED


def _in_turn(handlers: list[Callable[..., None]]) -> Callable[..., None]:
    def tell(*args: Any, **kwargs: Any) -> None:
        for handler in handlers:
            handler(*args, **kwargs)

    return tell


@dataclass(slots=True, eq=False)
class Span:
    """One pass through a stage, as a context.

    What a span inside it takes is taken off, so stages add up. A pass that raises costs its time. Without a recorder
    nothing is measured.
    """

    _recorder: Recorder | None
    _stage: Stage
    _outer: "Span | None" = None
    _began: float = 0.0
    _inner: float = 0.0

    def __enter__(self) -> Self:
        recorder = self._recorder
        if recorder is not None:
            self._outer = getattr(recorder.thread, "span", None)
            recorder.thread.span = self
            self._began = recorder.clock()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        outer = self._outer
        seconds = recorder.clock() - self._began
        if outer is not None:
            outer._inner += seconds
        recorder.thread.span = outer
        recorder.stage_passed(self._stage, seconds - self._inner)


UNMEASURED = Span(None, Stage.CLAIM)
"""The span of every stage while nobody wants stages."""
