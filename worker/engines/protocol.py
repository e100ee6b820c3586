"""The engine contract: requests in, one outcome a row, errors of rows as data."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from nightshift.common.spec import Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.telemetry.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Request:
    """One row as its task needs it.

    generate: `messages` (a single one where `is_plain_prompt`), `template_arguments` for the model's chat
    template, and `max_tokens` and the other fields of `sampling` where the row has its own. A message's
    `content` is text, or a list of parts: {"type": "text", "text": …} and
    {"type": "image", "image": worker.rows.images.Image}.
    embed, classify, score: `text`, and in `text_pair` the second text of a pair.
    requests: `body`, as the caller wrote it. function: nothing, see Work.
    """

    row_index: int
    messages: Sequence[Mapping[str, Any]] | None = None
    is_plain_prompt: bool = False
    max_tokens: int | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    text: str = ""
    text_pair: str | None = None
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that were spent. `cached_tokens` of the prompt tokens were in the engine's cache; `reasoning_tokens` of
    the output tokens are thoughts; `estimated_tokens` of both were estimated, since a server did not count them.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, name) + getattr(other, name) for name in USAGE_FIELDS))

    @property
    def in_a_row(self) -> "Usage":
        """The same within what the columns of a row hold."""
        return Usage(*(min(getattr(self, name), INT32_MAX) for name in USAGE_FIELDS))


INT32_MAX = 2**31 - 1

USAGE_FIELDS = tuple(field.name for field in fields(Usage))


@dataclass(frozen=True, slots=True)
class Answer:
    """The task's columns of one row, the engine's finish reason and the tokens.

    The tokens are those of Usage. `answered_by` is the row_index of the row that ran in place of this one.
    """

    columns: Mapping[str, Any]
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    answered_by: int | None = None
    estimated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one row has no answer, with the tokens that were spent nevertheless.

    The tokens are those of Usage. `columns` are columns of the task that describe the failure, such as a server's status.
    `of_library` says that the message is an error of a library that nobody expected: if it names a path, tenants do not
    read it.
    """

    kind: RowErrorKind
    message: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    of_library: bool = False


Outcome = Answer | Refusal


def usage_of(outcome: Outcome) -> Usage:
    """The tokens of an outcome."""
    return Usage(*(getattr(outcome, name) for name in USAGE_FIELDS))


OfRow = TypeVar("OfRow", bound=Outcome)


def with_usage(outcome: OfRow, usage: Usage) -> OfRow:
    """The outcome with these tokens in place of its own."""
    return replace(outcome, **{name: getattr(usage, name) for name in USAGE_FIELDS})


def _count_nowhere(_: Usage) -> None:
    """For work whose tokens nobody counts."""


@dataclass(slots=True, eq=False)
class Work:
    """One batch in an engine.

    `emit(position, outcome)` takes the outcome of `requests[position]`, once each, from any
    thread; `emit_all` takes those of several requests at once. After `stop()` the engine drops the requests
    that are not finished. The engine tells `recorder` when rows enter and leave it, how long rows waited and
    how long the engine worked.
    `resolved` is what the engine has fixed for the job; None where nobody keeps that. `rows` are the rows of
    the requests, for a function. `remark` is what the engine has to say of the
    batch although its rows may have answers. `spend` takes the tokens of a row that ends without an outcome. Rows of which the engine says that they wait may be
    withdrawn until they begin.
    """

    task: Task
    requests: Sequence[Request]
    row_timeout_seconds: float
    emit: Callable[[int, Outcome], None]
    recorder: Recorder = field(default_factory=Recorder)
    rows: pa.Table | None = None
    resolved: Mapping[str, Any] | None = None
    remark: str | None = None
    emit_many: Callable[[Sequence[int], Sequence[Outcome]], None] | None = None
    spend: Callable[[Usage], None] = _count_nowhere
    stopped: threading.Event = field(default_factory=threading.Event)
    # A future calls each callback once: those added before its end, and those added after it.
    _going_on: "Future[None]" = field(default_factory=Future)
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _waiting: set[int] = field(default_factory=set)
    _taken_back: set[int] = field(default_factory=set)
    _drop: Callable[[Collection[int]], object] | None = None

    def emit_all(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """As `emit` for each position; in one call where whoever made the work takes many at once."""
        if self.emit_many is not None:
            self.emit_many(positions, outcomes)
        else:
            for position, outcome in zip(positions, outcomes, strict=True):
                self.emit(position, outcome)

    def wait(self, drop: Callable[[Collection[int]], object], rows: Collection[int]) -> None:
        """The engine says that rows (by row_index) wait in it. From now on they may be withdrawn, and
        the engine calls `begin` for each. `drop(rows)`, from any thread, takes withdrawn rows out of
        the engine.
        """
        with self._changing:
            self._drop = drop
            self._waiting |= set(rows) - self._taken_back

    def begin(self, row_index: int) -> bool:
        """The engine begins a row now; False for a row that was withdrawn: the engine drops it."""
        with self._changing:
            self._waiting.discard(row_index)
            return row_index not in self._taken_back

    def begin_some(self, rows: Collection[int]) -> set[int]:
        """As `begin` for each of the rows (by row_index); those that were withdrawn."""
        with self._changing:
            self._waiting.difference_update(rows)
            return self._taken_back.intersection(rows)

    def begin_all(self) -> int:
        """Every row that is left begins now; how many were not withdrawn. These are the first requests."""
        with self._changing:
            self._waiting.clear()
            return self.rows_left

    @property
    def rows_waiting(self) -> int:
        """Rows that have not begun and may be withdrawn."""
        with self._changing:
            return len(self._waiting)

    def take_back(self, most_rows: int) -> list[int]:
        """Takes the last requests that have not begun, at most so many, out of the engine; returns their
        row_index, ascending. They get no outcome.
        """
        with self._changing:
            # In the order of the requests, which in an arranged batch is not that of row_index.
            waiting = [each.row_index for each in self.requests if each.row_index in self._waiting]
            taken = sorted(waiting[len(waiting) - min(most_rows, len(waiting)) :])
            self._waiting.difference_update(taken)
            self._taken_back.update(taken)
            drop = self._drop
        if taken and drop is not None:
            drop(taken)
        return taken

    def withdraw_unsent(self) -> set[int]:
        """Withdraws every row that has not begun, of a work that was stopped; returns all rows (by row_index) that were
        withdrawn: nothing was sent of them.
        """
        with self._changing:
            self._taken_back |= self._waiting
            self._waiting.clear()
            return set(self._taken_back)

    @property
    def rows_left(self) -> int:
        """Rows that were not withdrawn."""
        return len(self.requests) - len(self._taken_back)

    def is_taken_back(self, row_index: int) -> bool:
        """Whether nobody waits for the outcome of the row."""
        return row_index in self._taken_back

    def stop(self) -> None:
        """Cancels the requests that are not finished."""
        self.stopped.set()
        self._going_on.cancel()

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Calls `callback` at stop(), or at once after it."""
        self._going_on.add_done_callback(lambda _: callback())


def response_columns(status: int | None, request_id: str | None, response: str) -> dict[str, Any]:
    """The columns of a row of the task `requests`: a server's answer, or its refusal."""
    return {"status_code": status, "request_id": request_id, "response": response}


def timed_out(work: Work) -> Refusal:
    """The outcome of a row that took longer than it may."""
    seconds = work.row_timeout_seconds
    return Refusal(RowErrorKind.TIMEOUT, f"no answer within row_timeout_seconds {seconds:g}")


class Engine(Protocol):
    """A warm model. Several threads call `start` at once.

    `concurrency` is how many rows run at the same time, `version` that of the engine's library,
    `revision` the resolved revision of the model, None where there is none. `cache_tokens` are those
    that its prefix cache keeps, 0 for an engine that has none, None where that is not known. `code` are
    the files of a function as they were loaded: the SHA-256 of each, by its path below their folder.
    """

    name: str
    version: str
    revision: str | None
    concurrency: int
    cache_tokens: int | None
    code: Mapping[str, str]

    def resolve(self, task: Task) -> Mapping[str, Any]:
        """What the loaded model fixes for a job, once and for all its batches, as JSON; JobRefused for what the
        model cannot do.
        """

    def start(self, work: Work) -> "Future[None]":
        """Takes a batch and returns once it is prepared, which may be long before it has run.

        The future is done when every request has an outcome or was withdrawn, and done or cancelled
        when the work was stopped. Its exception is EngineDead when the engine cannot go on at all, and
        StorageUnavailable when images of some rows could not be read: these have no outcome.
        """

    def stalled_seconds(self) -> float:
        """Seconds without progress although there is work; 0 for an idle engine."""

    def close(self) -> None:
        """Ends the engine and every process of its own."""
