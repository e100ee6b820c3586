"""What the tasks of a vLLM engine share: the loaded model, and the protocol of their handlers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from vllm.v1.engine.async_llm import AsyncLLM

from nightshift.common.errors import EngineDead
from nightshift.worker.engines.images import Reads
from nightshift.worker.engines.protocol import Outcome, Request, Work
from nightshift.worker.engines.vllm.spelling import Spelling
from nightshift.worker.engines.vllm.thinking import Thinking
from nightshift.worker.engines.vllm.turns import Turns

T = TypeVar("T")

DECODED_ROWS = 8
"""Rows whose images are decoded at the same time: a decoded image may have 200 MB."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: `longest` is max_model_len, prompt and answer together, in tokens. `args` are the
    arguments that the spec gave the engine. `thinking` is that of a model that generates. `kept` is what was made
    once for all batches. Requests that ask for numbers of tokens take `turns`.

    `tokenizing` is held around each use of the tokenizer: HF's fast tokenizers are not safe for two
    threads at once. A row holds `decoding` from the decoding of its images until vLLM's processor
    has taken them.
    """

    llm: AsyncLLM
    tokenizer: Any
    longest: int
    args: Mapping[str, Any] = field(default_factory=dict)
    thinking: Thinking | None = None
    tokenizing: threading.Lock = field(default_factory=threading.Lock)
    decoding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODED_ROWS))
    reads: Reads = field(default_factory=Reads)
    kept: dict[Hashable, Any] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes at the first call for `what`. It may use the tokenizer, and calls this no further."""
        with self.tokenizing:
            if what not in self.kept:
                self.kept[what] = make()
            found: T = self.kept[what]
            return found

    @property
    def spelling(self) -> Spelling:
        """How labels are spelled in the model's tokens."""
        return self.once(Spelling, lambda: Spelling.of_engine(self.llm, self.tokenizer))


class TaskHandler(Protocol):
    """How the rows of one batch become requests of vLLM, and vLLM's outputs become outcomes."""

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """Position and prompt of every request that can be sent. The others are refused."""

    async def run(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds the row waited in vLLM's queue.

        Every exception but EngineDead and StorageUnavailable becomes a refusal of this row. BadImage
        becomes a render error.
        """


async def finished(outputs: AsyncIterator[Any]) -> Any:
    """What vLLM yields last for a request; EngineDead when vLLM ends it without that.

    Read to its end: vLLM aborts a request whose reader leaves before, in a task of its own, though the request is
    over.
    """
    last = None
    async for output in outputs:
        last = output
    if last is None or not last.finished:
        raise EngineDead("vLLM ended a request without an answer")
    return last


def request_id(request: object) -> str:
    """An id that no other request of this process has."""
    return f"{id(request):x}-{time.monotonic_ns()}"
