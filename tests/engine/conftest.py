"""One real vLLM engine, on CPU, for all tests of it: it takes about half a minute to start."""

from collections.abc import Iterator

import pytest

from nightshift.common.spec import VllmEngineSpec
from nightshift.worker.engines.protocol import Engine
from tests.engine.contract import lent
from tests.support.models import ARGUMENTS, MINILM, MODEL, POOLING_ARGUMENTS


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[Engine]:
    """The reviews model, loaded once a run."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    spec = VllmEngineSpec(backend="vllm", model=str(MODEL), args=ARGUMENTS)
    yield from lent(lambda: VllmEngine.load(spec, None))


@pytest.fixture(scope="session")
def vllm_embedder() -> Iterator[Engine]:
    """MiniLM in vLLM's pooling runner, loaded once a run."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    spec = VllmEngineSpec(backend="vllm", model=MINILM, args=POOLING_ARGUMENTS)
    yield from lent(lambda: VllmEngine.load(spec, None, "embed"))
