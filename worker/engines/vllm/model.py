"""What the tasks of a vLLM engine share: the loaded model, and how one of them asks it."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm.v1.engine.async_llm import AsyncLLM

from nightshift.worker.engines.protocol import Outcome, Request, Work
from nightshift.worker.rows.images import Reads

PICTURES = 8
"""Rows whose images are decoded at once: a picture may have 200 MB."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: `longest` is max_model_len, prompt and answer together, in tokens.

    HF's fast tokenizers are not safe for two threads at once: `tokenizing` is held around them.
    `seeing` is held by rows whose images are decoded, until vLLM's processor has them.
    """

    llm: AsyncLLM
    tokenizer: Any
    longest: int
    tokenizing: threading.Lock = field(default_factory=threading.Lock)
    seeing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PICTURES))
    reads: Reads = field(default_factory=Reads)


class Asker(Protocol):
    """How the rows of one batch become requests of vLLM, and what comes back outcomes."""

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """Position and prompt of every request that can be sent; the others are refused."""

    async def ask(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds it waited in vLLM's own queue.

        Whatever it raises, but for EngineDead and StorageUnavailable, is a refusal of this row.
        """


def request_id(request: Request) -> str:
    """A name that no other request of this process has."""
    return f"{id(request):x}-{time.monotonic_ns()}"
