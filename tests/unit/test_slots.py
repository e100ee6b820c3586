"""How many slots a run may have."""

from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import parse_spec
from nightshift.producer.local.slots import refuse_slots

FUNCTION = {"backend": "function", "callable": "rules:f"}
VLLM = {"backend": "vllm", "model": "M"}
TRANSFORMERS = {"backend": "transformers", "model": "M"}
OPENAI = {"backend": "openai", "model": "M", "base_url": "http://h/v1", "concurrency": 7}

TASKS: dict[str, dict[str, Any]] = {
    "function": {"kind": "function"},
    "transformers": {"kind": "embed", "text": "t"},
}


def refuse(engine: dict[str, Any], slots: int | None, gpus: int) -> None:
    generate = {"kind": "generate", "prompt": "{{ t }}"}
    sections = {
        "name": "n",
        "input": {"uri": "in", "id": "id"},
        "task": TASKS.get(engine["backend"], generate),
        "engine": engine,
        "output": {"uri": "out"},
    }
    refuse_slots(parse_spec(sections, "here"), slots, gpus)


@pytest.mark.parametrize(
    ("engine", "slots", "gpus"),
    [
        (FUNCTION, None, 0),
        (FUNCTION, 1, 0),
        (FUNCTION, 16, 0),
        (FUNCTION, 2, 2),
        (VLLM, None, 0),
        (VLLM, None, 8),
        (VLLM, 1, 0),
        (VLLM, 2, 4),
        (TRANSFORMERS, 4, 4),
        (OPENAI, None, 0),
        (OPENAI, 1, 0),
    ],
)
def test_functions_have_as_many_slots_as_wanted_and_models_a_share_of_the_gpus(
    engine: dict[str, Any], slots: int | None, gpus: int
) -> None:
    refuse(engine, slots, gpus)


@pytest.mark.parametrize(
    ("engine", "slots", "gpus", "reason"),
    [
        (VLLM, 2, 0, "would load the model into memory once more"),
        (TRANSFORMERS, 2, 0, "would load the model into memory once more"),
        (OPENAI, 2, 0, "engine.concurrency = 7"),
        (OPENAI, 2, 4, "engine.concurrency = 7"),
        (VLLM, 3, 4, "name 1 or 2 or 4"),
        (FUNCTION, 8, 1, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_slots_that_would_not_help_are_refused_with_what_helps(
    engine: dict[str, Any], slots: int, gpus: int, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        refuse(engine, slots, gpus)
