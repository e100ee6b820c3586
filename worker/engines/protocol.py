"""What every engine is to the runner: requests in, one outcome a row, errors as data."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from nightshift.common.spec import Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.telemetry.recorder import NO_PROFILE, Profile


@dataclass(frozen=True, slots=True)
class Request:
    """One row on its way in, as its task wants it.

    generate: `messages` (one of them where `is_plain_prompt`), and `max_tokens`, the row's own
    longest answer, where it has one. A message's `content` is text, or a list of parts:
    {"type": "text", "text": …} and {"type": "image", "image": worker.images.Image}. embed, classify, score: `text`, and the second of a pair in
    `text_pair`. requests: `body`, as the caller wrote it. function: the `row` itself.
    """

    row_index: int
    messages: Sequence[Mapping[str, Any]] | None = None
    row: Mapping[str, Any] | None = None
    is_plain_prompt: bool = False
    max_tokens: int | None = None
    text: str = ""
    text_pair: str | None = None
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The task's columns of one row; tokens are counted, `finish_reason` is the engine's word."""

    columns: Mapping[str, Any]
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one row has no answer; tokens that were spent on it all the same are counted.

    `columns` are those of the task's that say more of the failure, such as a server's status.
    """

    kind: RowErrorKind
    message: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)


Outcome = Answer | Refusal


@dataclass(slots=True)
class Work:
    """One batch on its way through an engine.

    `emit(position, outcome)` takes the outcome of `requests[position]`, once each, from any
    thread. After `stop()` nothing more is wanted: the engine drops what it has not finished and
    is done with it early. The engine tells `profile` when rows enter and leave it, how long they
    waited in it and how long it worked.
    """

    task: Task
    requests: Sequence[Request]
    row_timeout_seconds: float
    emit: Callable[[int, Outcome], None]
    profile: Profile = NO_PROFILE
    stopped: threading.Event = field(default_factory=threading.Event)
    _on_stop: list[Callable[[], object]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """Says that the rest is not wanted any more."""
        with self._lock:
            self.stopped.set()
            callbacks, self._on_stop = self._on_stop, []
        for callback in callbacks:
            callback()

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Calls `callback` at stop(), or now if it was stopped before."""
        with self._lock:
            if not self.stopped.is_set():
                self._on_stop.append(callback)
                return
        callback()


class Engine(Protocol):
    """A warm model. Several threads call `start` at once.

    `concurrency` is how many rows it works on at the same time; `version` names its library;
    `revision` is the resolved revision of the model, None where there is none.
    """

    name: str
    version: str
    revision: str | None
    concurrency: int

    def start(self, work: Work) -> "Future[None]":
        """Takes a batch and returns once it is prepared, which may be long before it has run.

        The future is done when every request has an outcome or the work was stopped (then it may
        also be cancelled); its exception is EngineDead when the engine cannot go on at all, and
        StorageUnavailable when images of some rows could not be read: they have no outcome.
        """

    def stalled_seconds(self) -> float:
        """For how long nothing has moved although there is work; 0 when idle or moving."""

    def close(self) -> None:
        """Ends the engine and every process of its own."""
