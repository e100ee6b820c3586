"""Whether the commands of images and manifests are commands of this code."""

from typing import Any

import typer

from nightshift.common.settings import Settings
from nightshift.producer.cli import app as producer_cli
from nightshift.worker import cli as worker_cli

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

CLIS = {"nightshift": producer_cli.app, "nightshift-worker": worker_cli.app}


def settings_variables() -> set[str]:
    """Every variable that common/settings.py reads."""
    own = {f"NIGHTSHIFT_{name.upper()}" for name in Settings.model_fields}
    return own | {"OPENAI_API_KEY", "OPENAI_BASE_URL"}


def refusal(line: list[str]) -> str | None:
    """Why the program would not take this command line; None when it would."""
    if line[0] not in CLIS:
        return f"{line[0]} is no command of the image"
    command: Any = typer.main.get_command(CLIS[line[0]])
    rest = [word.replace("$(POOL)", "default") for word in line[1:]]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = command.commands.get(rest.pop(0))
    if command is None:
        return "no such command"
    try:
        command.make_context(line[0], rest)
    except Exception as error:  # of the click that Typer brings along
        if not hasattr(error, "show"):
            raise
        return str(error)
    return None
