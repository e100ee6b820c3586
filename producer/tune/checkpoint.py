"""What the files of a model say, as far as this machine has them."""

import json
from pathlib import Path


def is_quantised(model: str, revision: str | None) -> bool:
    """Whether the config.json of a local folder or of the hub's cache says that the weights are quantised. False
    where this machine has no such file.
    """
    try:
        config = json.loads(_config_of(model, revision).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not here, no name of a hub model, no JSON
        return False
    return isinstance(config, dict) and bool(config.get("quantization_config"))


def _config_of(model: str, revision: str | None) -> Path:
    own = Path(model) / "config.json"
    if own.is_file():
        return own
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return own
    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found) if isinstance(found, str) else own
