"""`make bench-tokenizing`: rows/s of a vLLM engine that answers at once, so that its child does nothing but
render chat templates, tokenize, and hand rows over.

Ours tokenizes in the batch's thread, where Hugging Face's tokenizers use a thread for each core. The
others send the texts of a batch to 1, 2 or 4 processes, each with one thread.
"""

import asyncio
import os
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from benchmarks.report import Line as ReportLine
from benchmarks.report import Median, keep, spread
from nightshift.common.spec import GenerateTask
from nightshift.worker.engines.arrival_order import Line
from nightshift.worker.engines.loop_thread import LoopThread
from nightshift.worker.engines.protocol import Outcome, Request, Work
from nightshift.worker.engines.vllm.engine import VllmEngine
from nightshift.worker.engines.vllm.generate import Generation
from nightshift.worker.engines.vllm.model import Model
from nightshift.worker.engines.vllm.thinking import Thinking

MODEL = Path(__file__).parents[1] / "examples" / "reviews" / "model"

BATCHES, BATCH_ROWS, BATCHES_AT_ONCE, ROUNDS = 16, 256, 4, 9

WORDS = {"short": 20, "middle": 130, "long": 620}
"""Words of a prompt, of about 1.5 tokens each."""

PROCESSES = (1, 2, 4)

SENTENCE = [
    "the",
    "room",
    "was",
    "small",
    "and",
    "the",
    "wifi",
    "kept",
    "failing",
    "but",
    "the",
    "staff",
    "found",
    "us",
    "another",
    "one",
]


class InstantLlm:
    """Answers every request at once with one token, as AsyncLLM would."""

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        """One finished output."""
        answer = CompletionOutput(0, "yes", [1], None, None, finish_reason="stop")
        yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [answer], True)


class Unverified(Generation):
    """The handler of the task, whose sampling nobody verifies."""

    def verify(self) -> None:
        """Nothing: there is no vLLM."""


class InstantEngine(VllmEngine):
    """VllmEngine around an LLM that answers at once."""

    def __init__(self, tokenizer: Any) -> None:
        self.concurrency = 256
        self.revision = None
        self._in_flight, self._moved_at = 0, time.monotonic()
        self._loop_thread = LoopThread()
        thinking = Thinking(tokenizer, "llama")
        self._model = Model(cast("AsyncLLM", InstantLlm()), tokenizer, 1_000_000, {}, thinking)
        self._places, self._line = asyncio.Semaphore(512), Line(self.concurrency)

    def _handler(self, work: Work) -> Unverified:
        assert isinstance(work.task, GenerateTask)
        return Unverified(self._model, work.task, {})

    def resolve(self, _: Any) -> dict[str, Any]:
        """Nothing is fixed for a job."""
        return {}

    def close(self) -> None:
        """Ends the loop."""
        self._loop_thread.close(10)


_tokenizer: Any = None


def _load() -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = AutoTokenizer.from_pretrained(MODEL)


def _encode(texts: list[str], special: bool) -> list[list[int]]:
    found: list[list[int]] = _tokenizer(texts, add_special_tokens=special)["input_ids"]
    return found


class PooledTokenizer:
    """A tokenizer whose texts are encoded by so many processes, a part of the batch each."""

    def __init__(self, tokenizer: Any, processes: int) -> None:
        self.chat_template = tokenizer.chat_template
        self.apply_chat_template = tokenizer.apply_chat_template
        self._processes = processes
        context = get_context("spawn")
        self.pool = ProcessPoolExecutor(processes, context, initializer=_load)
        self(["warm"] * processes, add_special_tokens=False)

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool) -> dict[str, Any]:
        """The token ids of all texts, in their order."""
        each = -(-len(texts) // self._processes)
        parts = [list(texts[start : start + each]) for start in range(0, len(texts), each)]
        found = [self.pool.submit(_encode, part, add_special_tokens) for part in parts]
        return {"input_ids": [ids for part in found for ids in part.result()]}


@contextmanager
def contenders() -> Iterator[dict[str, InstantEngine]]:
    """An engine for each way to tokenize, by its name."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    pools = {number: PooledTokenizer(tokenizer, number) for number in PROCESSES}
    engines = {"batch's thread": InstantEngine(tokenizer)}
    engines |= {f"{number} processes": InstantEngine(pool) for number, pool in pools.items()}
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.close()
        for pool in pools.values():
            pool.pool.shutdown()


def rate(engine: InstantEngine, prompt: str) -> float:
    """Rows/s of some batches, several at once."""
    task = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}"})
    answered: list[Outcome] = []
    adding = threading.Lock()

    def emit(_: int, outcome: Outcome) -> None:
        with adding:
            answered.append(outcome)

    def run(batch: int) -> None:
        requests = [
            Request(row, messages=({"role": "user", "content": f"{batch} {row} {prompt}"},))
            for row in range(BATCH_ROWS)
        ]
        engine.start(Work(task, requests, 60.0, emit)).result()

    began = time.perf_counter()
    with ThreadPoolExecutor(BATCHES_AT_ONCE) as threads:
        list(threads.map(run, range(BATCHES)))
    seconds = time.perf_counter() - began
    tokens = {type(each).__name__ for each in answered}
    if len(answered) != BATCHES * BATCH_ROWS or tokens != {"Answer"}:
        raise SystemExit(f"{len(answered)} outcomes: {tokens}")
    return len(answered) / seconds


def main() -> None:
    """Every contender in each round, side by side."""
    lines = []
    with contenders() as engines:
        for name, words in WORDS.items():
            prompt = " ".join((SENTENCE * (words // len(SENTENCE) + 1))[:words])
            rates: dict[str, list[float]] = {each: [] for each in engines}
            for engine in engines.values():
                rate(engine, prompt)
            for _ in range(ROUNDS):
                for each, engine in engines.items():
                    rates[each].append(rate(engine, prompt))
            ours = next(iter(rates.values()))
            for each, found in rates.items():
                ratio = Median.of([one / own for one, own in zip(found, ours, strict=True)])
                middle = f"{statistics.median(found):,.0f} rows/s"
                lines.append(
                    ReportLine(
                        "tokenizing", f"{name} prompts, {each}", middle, str(ratio), ROUNDS,
                        spread(found),
                    )
                )  # fmt: skip
    keep("tokenizing", lines)


if __name__ == "__main__":
    main()
