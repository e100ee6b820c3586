"""Every engine but vLLM keeps the runner's contract; one class an engine."""

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import (
    GenerateTask,
    OpenaiEngineSpec,
    Task,
    TransformersEngineSpec,
)
from nightshift.worker.engines.openai.engine import OpenaiEngine
from nightshift.worker.engines.protocol import Engine, Request
from tests.engine.contract import Contract, Embeds, lent
from tests.support.functions import TASK, hosted
from tests.support.models import MINILM
from tests.support.remote import Call, Remote, Reply, answered, refused


class TestFunction(Contract):
    """In a process of its own; `text` is the number of a row."""

    task = TASK

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        yield from lent(lambda: hosted("callables:square"))

    def request(self, index: int) -> Request:
        return Request(index, text=str(index))

    def bad(self, index: int) -> Request:
        return Request(index)

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, Request(index, text=str(index), max_tokens=5)

    def rows(self, requests: Sequence[Request]) -> pa.Table:
        numbers = [int(each.text) if each.text else None for each in requests]
        pauses = [(each.max_tokens or 0) / 1000 for each in requests]
        return pa.table({"n": pa.array(numbers, "int64"), "seconds": pa.array(pauses, "double")})


class TestFunctionClass(TestFunction):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        yield from lent(lambda: hosted("callables:Power", {"exponent": 2}))


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
