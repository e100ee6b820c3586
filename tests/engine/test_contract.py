"""Every engine keeps the runner's contract; one class an engine."""

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import (
    EmbedTask,
    FunctionTask,
    GenerateTask,
    OpenaiEngineSpec,
    RequestsTask,
    Task,
    TransformersEngineSpec,
)
from nightshift.worker.engines.function import FunctionEngine
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.protocol import Answer, Engine, Request
from tests.engine.conftest import MINILM
from tests.engine.contract import Contract, lent
from tests.integration.remote import Call, Remote, Reply, answered, refused


def picky(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Squares numbers, raises for what is none, sleeps where it is told to."""
    time.sleep(sum(row.get("seconds", 0) for row in rows))
    return [{"square": row["n"] ** 2} for row in rows]


class TestFunction(Contract):
    task = FunctionTask(kind="function")

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        yield from lent(lambda: FunctionEngine(picky, "tests:picky"))

    def request(self, index: int) -> Request:
        return Request(index, row={"n": index})

    def bad(self, index: int) -> Request:
        return Request(index, row={"n": "three"})

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, Request(index, row={"n": index, "seconds": 0.005})


class Squares:
    """The same as a class, made once."""

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(sum(row.get("seconds", 0) for row in rows))
        return [{"square": row["n"] ** self.exponent} for row in rows]


class TestFunctionClass(TestFunction):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        yield from lent(lambda: FunctionEngine(Squares(2), "tests:Squares"))


class Embeds(Contract):
    task = EmbedTask(kind="embed", text="{{ text }}")

    def request(self, index: int) -> Request:
        return Request(index, text=f"Row {index} is about {('cats', 'taxes', 'rain')[index % 3]}.")

    def bad(self, index: int) -> Request:
        return Request(index, text="word " * 5_000)

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, Request(index, text=f"{index} " + "word " * 200)

    def same(self, one: Answer, other: Answer) -> bool:
        """Sums of floats depend on what else is in the pass, in the last digits."""
        both = (each.columns["embedding"] for each in (one, other))
        return bool(np.allclose(*both, atol=1e-5)) and one.prompt_tokens == other.prompt_tokens


class TestTransformers(Embeds):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        from nightshift.worker.engines.transformers.engine import TransformersEngine

        spec = TransformersEngineSpec(backend="transformers", model=MINILM, batch_size=8)
        yield from lent(lambda: TransformersEngine.load(spec, None, "embed"))


class TestVllmPooling(Embeds):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_embedder: Engine) -> Engine:
        return vllm_embedder


class TestVllm(Contract):
    task = GenerateTask.model_validate(
        {
            "kind": "generate",
            "prompt": "{{ text }}",
            "sampling": {"max_tokens": 8},
            "output": {"choice": ["positive", "neutral", "negative"]},
        }
    )

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_engine: Engine) -> Engine:
        return vllm_engine

    def request(self, index: int) -> Request:
        mood = ("I love it", "It is a lamp", "It broke at once")[index % 3]
        return self._prompt(index, f"{mood}, number {index}.")

    def bad(self, index: int) -> Request:
        return self._prompt(index, "word " * 5_000)

    def slow(self, index: int) -> tuple[Task, Request]:
        long = {"max_tokens": 400, "ignore_eos": True}
        task = self.task.model_validate(
            {"kind": "generate", "prompt": "{{ text }}", "sampling": long}
        )
        return task, self.request(index)

    def _prompt(self, index: int, text: str) -> Request:
        return Request(index, messages=[{"role": "user", "content": text}], is_plain_prompt=True)


class TestOpenai(Contract):
    task = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}"})

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        with Remote().running() as remote:
            remote.behave = cls.behave
            spec = OpenaiEngineSpec(backend="openai", model="m", base_url=remote.url, concurrency=8)
            yield from lent(lambda: OpenaiEngine.load(spec, Settings()))

    @staticmethod
    def behave(call: Call) -> Reply:
        if call.text.startswith("slow"):
            time.sleep(0.005)
        return refused(400, "no numbers") if call.text.startswith("bad") else answered(call)

    def request(self, index: int) -> Request:
        return self._prompt(index, f"row {index}")

    def bad(self, index: int) -> Request:
        return self._prompt(index, f"bad {index}")

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, self._prompt(index, f"slow {index}")

    def _prompt(self, index: int, text: str) -> Request:
        return Request(index, messages=[{"role": "user", "content": text}], is_plain_prompt=True)


class TestVllmRequests(Contract):
    task = RequestsTask(kind="requests", endpoint="/v1/chat/completions")

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_engine: Engine) -> Engine:
        return vllm_engine

    def request(self, index: int) -> Request:
        return self._chat(index, f"I love it, number {index}.", max_tokens=4, temperature=0)

    def bad(self, index: int) -> Request:
        return self._chat(index, "word " * 5_000)

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, self._chat(index, "I love it.", max_tokens=400, ignore_eos=True)

    def same(self, one: Answer, other: Answer) -> bool:
        first, second = (json.loads(answer.columns["response"]) for answer in (one, other))
        return all(first[name] == second[name] for name in ("choices", "usage"))

    def _chat(self, index: int, text: str, **fields: Any) -> Request:
        return Request(index, body={"messages": [{"role": "user", "content": text}], **fields})
