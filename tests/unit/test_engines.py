"""Which engine a job loads, and what can be said before anything heavy is imported."""

import sys

import pytest

from common.errors import EngineLoadFailed
from common.settings import Settings
from common.spec import parse_spec
from worker import engines


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
