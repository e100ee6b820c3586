"""Whether the commands of images and manifests are commands of this code."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from common.settings import Settings

FOREIGN = {
    "CUDA_VISIBLE_DEVICES": "CUDA",
    "FLASHINFER_WORKSPACE_BASE": "FlashInfer: compiled kernels",
    "HF_HOME": "huggingface_hub: weights",
    "HF_TOKEN": "huggingface_hub: models behind a gate",
    "HOME": "libraries that write below it",
    "PATH": "the shell",
    "PYTHONDONTWRITEBYTECODE": "Python: the file system is read-only",
    "PYTHONSAFEPATH": "Python: the working folder is no place to import from",
    "PYTHONUNBUFFERED": "Python: a log line leaves at once",
    "TORCHINDUCTOR_CACHE_DIR": "torch: compiled kernels",
    "TRITON_CACHE_DIR": "Triton: compiled kernels",
    "VLLM_CACHE_ROOT": "vLLM: compiled graphs",
}
"""Variables of other programs that our images and manifests may set, and whose they are."""

PROBE = "--no-such-option"


def settings_variables() -> set[str]:
    """Every variable that common/settings.py reads."""
    own = {f"NIGHTSHIFT_{name.upper()}" for name in Settings.model_fields}
    return own | {"OPENAI_API_KEY", "OPENAI_BASE_URL"}


@cache
def complaint(*words: str) -> str | None:
    """What is wrong with a command line such as `nightshift-worker --pool default`; None if nothing.

    The command runs with an option behind it that none has. It reads its words in order, so what it
    complains about is that option, or something before it; nothing is started.
    """
    script = Path(sys.executable).parent / words[0]
    if not script.exists():
        return f"there is no command {words[0]}"
    ran = subprocess.run(
        [str(script), *words[1:], PROBE],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )
    said = ran.stdout + ran.stderr
    subcommand = [word for word in words[1:2] if not word.startswith("-")]
    read = f"Usage: {' '.join([words[0], *subcommand])} " in said
    if ran.returncode == 2 and f"No such option: {PROBE}" in said and read:
        return None
    return f"{' '.join(words)}: {said.strip()}"
