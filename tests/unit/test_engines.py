"""Which engine a job loads, and what can be said before anything heavy is imported."""

import sys

import pytest

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.worker import engines


def test_a_model_folder_that_is_not_there_is_said_at_once() -> None:
    spec = parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.parquet"},
            "task": {"kind": "generate", "prompt": "{{ text }}"},
            "engine": {"backend": "vllm", "model": "/no/such/folder"},
            "output": {"uri": "out"},
        },
        "test",
    )
    before = set(sys.modules)
    with pytest.raises(EngineLoadFailed, match="/no/such/folder is not on this worker"):
        engines.load(spec, Settings())
    assert "vllm" not in set(sys.modules) - before


@pytest.mark.parametrize("backend", ["vllm", "transformers", "openai"])
def test_an_engine_whose_library_is_not_here_names_its_extra(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"nightshift.worker.engines.{backend}.engine", None)
    spec = parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.parquet"},
            "task": {"kind": "embed", "text": "{{ text }}"},
            "engine": {"backend": backend, "model": "m"},
            "output": {"uri": "out"},
        },
        "test",
    )
    extra = "gpu" if backend == "vllm" else backend
    with pytest.raises(EngineLoadFailed, match=rf"install nightshift-fleet\[{extra}\]"):
        engines.load(spec, Settings())
