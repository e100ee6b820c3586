"""Every engine but vLLM keeps the runner's contract; one class an engine."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import (
    FunctionTask,
    GenerateTask,
    OpenaiEngineSpec,
    Task,
    TransformersEngineSpec,
)
from nightshift.worker.engines.function import FunctionEngine
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.protocol import Engine, Request
from tests.engine.contract import Contract, Embeds, lent
from tests.support.models import MINILM
from tests.support.remote import Call, Remote, Reply, answered, refused


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


@pytest.mark.slow
class TestTransformers(Embeds):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        from nightshift.worker.engines.transformers.engine import TransformersEngine

        spec = TransformersEngineSpec(backend="transformers", model=MINILM, batch_size=8)
        yield from lent(lambda: TransformersEngine.load(spec, None, "embed"))


class TestOpenai(Contract):
    task = GenerateTask.model_validate({"kind": "generate", "prompt": "{{ text }}"})

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        with Remote().running() as remote:
            remote.behave = cls.behave
            spec = OpenaiEngineSpec(backend="openai", model="m", base_url=remote.url, concurrency=8)
            yield from lent(lambda: OpenaiEngine(spec, Settings()))

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
