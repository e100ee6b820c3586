"""Where a child's time goes: spans by stage, and how full its engine was.

Made for `nightshift-worker --profile` and for metrics; without either NO_PROFILE stands in its
place and costs nothing.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self


class Stage(StrEnum):
    """What a child does for its batches, in the order in which a batch meets it."""

    CLAIM = "claim"
    READ = "read"
    RENDER = "render"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    INFER = "infer"
    TABLE = "table"
    WRITE = "write"
    COMMIT = "commit"
    SETTLE = "settle"


@dataclass(slots=True)
class Spent:
    """What one stage took so far.

    `count` is how many batches (for QUEUE in vLLM: rows) went through it well, in how many
    `calls`; `seconds` are summed over threads, so those of a minute may be many minutes;
    `cpu_seconds` are those of the stage's own threads.
    """

    calls: int = 0
    count: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclass(slots=True)
class Fullness:
    """How full the engine was while the child was at work.

    At work is a child that holds a batch or whose last claim brought one: from its first claim to
    its last commit, less the pauses in which it had nothing and none was admitted. Of these
    `seconds`, `fewer_seconds` are those with fewer rows in the engine than its `concurrency`,
    waiting in its own queue or running; of these in turn, `empty_seconds` had no row at all, and
    `dry_seconds` came after a claim that found nothing: the queue, not the child, left the engine
    hungry. `row_seconds` over `seconds` is the mean number of rows in the engine; `rows` went in.
    `no_work_seconds` are the pauses, outside of `seconds`.
    """

    concurrency: int = 0
    rows: int = 0
    seconds: float = 0.0
    fewer_seconds: float = 0.0
    empty_seconds: float = 0.0
    dry_seconds: float = 0.0
    row_seconds: float = 0.0
    no_work_seconds: float = 0.0


class EngineMeter:
    """Integrates over time how many rows are in the engine. For any thread."""

    def __init__(self, concurrency: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sums = Fullness(concurrency=concurrency)
        self._since = clock()
        self._rows = self._held = 0
        self._dry = True
        self._lock = threading.Lock()

    def claimed(self, batches: int) -> None:
        """A claim was answered: the child holds so many batches more; 0: none is admitted."""
        with self._lock:
            self._advance()
            self._held += batches
            self._dry = batches == 0

    def let_go(self) -> None:
        """A batch is committed, given back or lost."""
        with self._lock:
            self._advance()
            self._held -= 1

    def enter(self, rows: int = 1) -> None:
        """So many rows are the engine's from here on."""
        with self._lock:
            self._advance()
            self._rows += rows
            self._sums.rows += rows

    def leave(self, rows: int = 1) -> None:
        """So many rows left the engine, answered or not."""
        with self._lock:
            self._advance()
            self._rows -= rows

    @property
    def rows(self) -> int:
        """Rows in the engine now."""
        return self._rows

    def sums(self) -> Fullness:
        """The figures up to now."""
        with self._lock:
            self._advance()
            return replace(self._sums)

    def _advance(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        sums = self._sums
        if not self._held and self._dry:
            sums.no_work_seconds += passed
            return
        sums.seconds += passed
        sums.row_seconds += passed * self._rows
        if self._rows < sums.concurrency:
            sums.fewer_seconds += passed
            sums.empty_seconds += passed * (self._rows == 0)
            sums.dry_seconds += passed * self._dry


class Span:
    """One pass through a stage, as a context; set `count` inside when it is not one batch.

    What a span inside it takes is taken off, so stages add up. A pass that raises costs its time
    and counts no batch.
    """

    __slots__ = ("_began", "_began_cpu", "_inner", "_inner_cpu", "_outer", "_profile", "count")

    def __init__(self, profile: "Profile", stage: Stage, count: int) -> None:
        self._profile = (profile, stage)
        self.count = count

    def __enter__(self) -> Self:
        profile, _ = self._profile
        self._outer = profile.running()
        profile.run(self)
        self._inner = self._inner_cpu = 0.0
        self._began, self._began_cpu = profile.clock(), profile.cpu_clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        profile, stage = self._profile
        seconds = profile.clock() - self._began
        cpu_seconds = profile.cpu_clock() - self._began_cpu
        if self._outer is not None:
            self._outer._inner += seconds
            self._outer._inner_cpu += cpu_seconds
        profile.run(self._outer)
        profile.add(
            stage,
            seconds - self._inner,
            cpu_seconds=cpu_seconds - self._inner_cpu,
            count=0 if kind else self.count,
        )


class Profile:
    """The figures of one child, from all of its threads. Clocks are in seconds."""

    def __init__(
        self,
        concurrency: int,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.engine = EngineMeter(concurrency, clock)
        self._spent = {stage: Spent() for stage in Stage}
        self._lock = threading.Lock()
        self._local = threading.local()

    def span(self, stage: Stage, count: int = 1) -> Span:
        """A pass of `count` batches through a stage, to be used with `with`."""
        return Span(self, stage, count)

    def add(
        self, stage: Stage, seconds: float, *, cpu_seconds: float = 0.0, count: int = 1
    ) -> None:
        """A pass that is over, where no `with` fits around it."""
        with self._lock:
            spent = self._spent[stage]
            spent.calls += 1
            spent.count += count
            spent.seconds += seconds
            spent.cpu_seconds += cpu_seconds
            spent.longest_seconds = max(spent.longest_seconds, seconds)

    def running(self) -> Span | None:
        """The innermost span of this thread."""
        found: Span | None = getattr(self._local, "span", None)
        return found

    def run(self, span: Span | None) -> None:
        """Makes a span the innermost of this thread."""
        self._local.span = span

    def seconds(self) -> dict[Stage, float]:
        """What each stage took so far."""
        with self._lock:
            return {stage: spent.seconds for stage, spent in self._spent.items()}

    def figures(self) -> dict[str, Any]:
        """Everything so far, as it stands in a line of the profile's file."""
        with self._lock:
            stages = {stage.value: asdict(spent) for stage, spent in self._spent.items()}
        return {"stages": stages, "engine": asdict(self.engine.sums())}


class _NoMeter(EngineMeter):
    def claimed(self, batches: int) -> None: ...
    def let_go(self) -> None: ...
    def enter(self, rows: int = 1) -> None: ...
    def leave(self, rows: int = 1) -> None: ...


class _NoSpan(Span):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class _NoProfile(Profile):
    def __init__(self) -> None:
        super().__init__(0)
        self.engine = _NoMeter(0)
        self._no_span = _NoSpan(self, Stage.CLAIM, 0)

    def span(self, stage: Stage, count: int = 1) -> Span:
        return self._no_span

    def add(
        self, stage: Stage, seconds: float, *, cpu_seconds: float = 0.0, count: int = 1
    ) -> None: ...


NO_PROFILE: Profile = _NoProfile()
"""Keeps nothing: what a child has whose time nobody asked for."""
