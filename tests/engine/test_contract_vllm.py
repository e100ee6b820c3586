"""vLLM keeps the runner's contract: with prompts, with whole requests, and as an embedder."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nightshift.common.spec import GenerateTask, RequestsTask, Task
from nightshift.worker.engines.protocol import Answer, Engine, Request
from tests.engine.contract import Contract, Embeds


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

    def same(self, one: Answer, other: Answer) -> bool:
        """Whether a label took one token or was written to its end depends on the rows beside it."""
        return replace(one, output_tokens=0) == replace(other, output_tokens=0)

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


class TestVllmPooling(Embeds):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_embedder: Engine) -> Engine:
        return vllm_embedder
