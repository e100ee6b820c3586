"""The recorder: the core of a child emits events, and subscribers count, measure or log them.

Without a subscriber an event is not even made, so a recorder that nobody listens to costs next to
nothing.
"""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self

from nightshift.worker.telemetry.events import ProblemReported, Stage, StagePassed

P = ParamSpec("P")

Handlers = Mapping[type, Callable[[Any], None]]
"""What a subscriber does with each type of event that it wants."""


class Subscriber(Protocol):
    """Whoever wants events. Handlers are called in the thread of the event, and must not fail."""

    def handlers(self) -> Handlers:
        """The events that it wants."""


class Recorder:
    """Tells subscribers what happens in one child. For any thread; clocks are in seconds.

    Subscribe before the first event: a subscriber hears only of what comes after.
    """

    def __init__(
        self,
        *subscribers: Subscriber,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.thread = threading.local()
        self._handlers: dict[object, list[Callable[[Any], None]]] = {}
        for subscriber in subscribers:
            for event, handler in subscriber.handlers().items():
                self._handlers.setdefault(event, []).append(handler)

    def emit(self, event: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Makes an event of a type from its fields, for those who want this type."""
        handlers = self._handlers.get(event)
        if handlers is not None:
            made = event(*args, **kwargs)
            for handler in handlers:
                handler(made)

    def span(self, stage: Stage, count: int = 1) -> "Span":
        """A pass of `count` batches through a stage, to be used with `with`."""
        return Span(self, stage, count) if StagePassed in self._handlers else UNMEASURED

    def problem(self, name: str, **fields: Any) -> None:
        """Something went wrong and the child goes on; `name` is a constant."""
        self.emit(ProblemReported, name, fields)

    def crash(self, name: str, error: BaseException, **fields: Any) -> None:
        """An exception that nobody expected; `name` is a constant."""
        self.emit(ProblemReported, name, fields, error)


class Span:
    """One pass through a stage, as a context; set `count` inside when it is not one batch.

    What a span inside it takes is taken off, so stages add up. A pass that raises costs its time
    and counts no batch. Without a recorder nothing is measured.
    """

    __slots__ = (
        "_began",
        "_began_cpu",
        "_inner",
        "_inner_cpu",
        "_outer",
        "_recorder",
        "_stage",
        "count",
    )

    def __init__(self, recorder: Recorder | None, stage: Stage, count: int) -> None:
        self._recorder = recorder
        self._stage = stage
        self.count = count

    def __enter__(self) -> Self:
        recorder = self._recorder
        if recorder is None:
            return self
        self._outer: Span | None = getattr(recorder.thread, "span", None)
        recorder.thread.span = self
        self._inner = self._inner_cpu = 0.0
        self._began, self._began_cpu = recorder.clock(), recorder.cpu_clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        outer = self._outer
        seconds = recorder.clock() - self._began
        cpu_seconds = recorder.cpu_clock() - self._began_cpu
        if outer is not None:
            outer._inner += seconds
            outer._inner_cpu += cpu_seconds
        recorder.thread.span = outer
        recorder.emit(
            StagePassed,
            self._stage,
            seconds - self._inner,
            cpu_seconds - self._inner_cpu,
            0 if kind else self.count,
        )


UNMEASURED = Span(None, Stage.CLAIM, 0)
"""The span of every stage while nobody wants stages."""
