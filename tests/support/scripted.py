"""An engine that tests drive by hand."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from nightshift.common.errors import EngineDead
from nightshift.common.spec import Task
from nightshift.worker.engines.protocol import Answer, Work


@dataclass
class Scripted:
    """An engine that answers when it is told to, or at once."""

    name: str = "function"
    version: str = "1"
    revision: str | None = None
    concurrency: int = 64
    cache_tokens: int | None = None
    code: dict[str, str] = field(default_factory=dict)
    died_with: str | None = None
    obeys: bool = True
    at_once: bool = False
    taken: list[tuple[Work, "Future[None]"]] = field(default_factory=list)

    def resolve(self, task: Task) -> Mapping[str, Any]:
        return {}

    def start(self, work: Work) -> "Future[None]":
        future: Future[None] = Future()
        self.taken.append((work, future))
        if self.obeys:
            work.on_stop(future.cancel)
        if self.at_once:
            self.answer(-1)
        return future

    def answer(self, at: int, most_rows: int | None = None, error: Exception | None = None) -> None:
        work, future = self.taken[at]
        assert work.rows is not None
        for position, said in enumerate(work.rows.column("text").to_pylist()[:most_rows]):
            work.emit(position, Answer({"loud": said.upper()}))
        future.set_result(None) if error is None else future.set_exception(error)

    def die(self, at: int) -> None:
        self.taken[at][1].set_exception(EngineDead("no more"))

    def stalled_seconds(self) -> float:
        return 0.0

    def close(self) -> None: ...
