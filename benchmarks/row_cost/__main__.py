"""`make bench-row-cost`: what a row costs a child, through a function and through vLLM's frontend.

Batches go through the worker's own code, from the file to the part: read, render, engine, table, file. There is no
ledger. The function is `echo`, in its own process. vLLM runs twice: as an LLM that answers at once, so that nothing
but the worker's own code is left; and with the frontend of vLLM that runs in a child (AsyncLLM), in front of an
EngineCore that answers at once.
"""

import asyncio
import gc
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from transformers import AutoTokenizer
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.serial_utils import MsgpackEncoder

from benchmarks.report import keep
from benchmarks.row_cost.rig import OF_FUNCTION, Contender, Rig, measured, rig_around
from benchmarks.tokenizing import MODEL, InstantEngine
from nightshift.common.spec import JobSpec
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.engines.vllm.engine import VllmEngine

WANTED = 5000
"""Rows/s of one child that keep a fast GPU with a small model busy."""


PROMPT = "Is this review good or bad?\n\n{{ text }}"


SHORT = {
    "task": {"kind": "generate", "prompt": PROMPT, "sampling": {"max_tokens": 4}},
    "engine": {"backend": "vllm", "model": str(MODEL)},
}


def worker_rig(rows: int) -> AbstractContextManager[Rig]:
    """The rig of an LLM that answers at once: the worker's own code, and SamplingParams."""

    def load(_: JobSpec) -> Engine:
        return cast("Engine", InstantEngine(AutoTokenizer.from_pretrained(MODEL)))

    return rig_around(SHORT, load, rows)


@dataclass(eq=False)
class InstantCore:
    """Answers every request at once with the tokens of a word, as the client of an EngineCore would."""

    word: list[int]
    engine_ranks_managed: tuple[int, ...] = (0,)
    resources: Any = field(default_factory=lambda: SimpleNamespace(engine_dead=False))
    _encoder: MsgpackEncoder = field(default_factory=MsgpackEncoder)
    _waiting: list[EngineCoreOutput] = field(default_factory=list)
    _there: asyncio.Event = field(default_factory=asyncio.Event)

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """What the model can do."""
        return ("generate",)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Encodes the request, as for another process, and answers it."""
        self._encoder.encode(request)
        tokens = len(request.prompt_token_ids or ())
        self._waiting.append(
            EngineCoreOutput(
                request.request_id, list(self.word), finish_reason=FinishReason.STOP,
                prefill_stats=PrefillStats(tokens, tokens),
            )
        )  # fmt: skip
        self._there.set()

    async def get_output_async(self) -> EngineCoreOutputs:
        """The answers since the last call."""
        await self._there.wait()
        await asyncio.sleep(0)
        self._there.clear()
        ready, self._waiting = self._waiting, []
        return EngineCoreOutputs(outputs=ready)

    async def abort_requests_async(self, requests: list[str]) -> None:
        """Nothing: what was asked has been answered."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing to end."""


def frontend_rig(rows: int) -> AbstractContextManager[Rig]:
    """The rig of a vLLM engine whose EngineCore answers at once."""

    def load(spec: JobSpec) -> Engine:
        def client(**known: Any) -> InstantCore:
            tokenizer = known["renderer"].tokenizer
            word = tokenizer.encode("good", add_special_tokens=False)
            return InstantCore([*word, tokenizer.eos_token_id])

        with patch.object(EngineCoreClient, "make_async_mp_client", staticmethod(client)):
            return VllmEngine.load(cast("Any", spec.engine), None, "generate", spec.task)

    return rig_around(SHORT, load, rows)


CONTENDERS = (
    OF_FUNCTION,
    Contender("vLLM, short answers: the worker's own code", worker_rig, 8192, WANTED),
    Contender("vLLM, short answers: with vLLM's frontend", frontend_rig, 8192, WANTED),
)


def main() -> None:
    """One contender after the other, each in its rounds."""
    gc.set_threshold(100_000, 50, 100)  # as in a child
    keep("row_cost", [measured(each) for each in CONTENDERS])


if __name__ == "__main__":
    main()
