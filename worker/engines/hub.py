"""Models of a hub: fetched into the cache that the children of a node share, each file once.

huggingface_hub locks each file of its cache: one process fetches a file, and the others wait for
it. The lock is the kernel's and ends with the process that holds it, in any container. This module
logs when a fetch begins and ends, and removes the half-fetched files of killed processes: each try
writes a file with a name of its own, which huggingface_hub never removes.
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from huggingface_hub import HfApi, constants, snapshot_download

from nightshift.common.errors import LoadUnexplained, NightshiftError

log = structlog.get_logger(__name__)

ABANDONED_SECONDS = 600.0
"""A half-fetched file to which nothing was written for so long belongs to no live process."""

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a cache that cannot be written."""

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Configuration and tokenizer, in the model's folder and in those of sentence-transformers."""


@contextmanager
def load_errors(library: str, model: str) -> Iterator[None]:
    """Around the load of a model: LoadUnexplained, on one line, for what a library raises."""
    try:
        yield
    except NightshiftError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:600] or "no further message"
        raise LoadUnexplained(
            f"{library} cannot load {model!r}: {type(error).__name__}: {message}"
        ) from error


def loaded_commit(model: str, config: Any, revision: str | None = None) -> str | None:
    """The commit of a loaded hub model, else its `revision`; a local folder has none."""
    found = getattr(config, "_commit_hash", None) or revision
    return None if found is None or Path(model).exists() else str(found)


def is_hub_model(model: str) -> bool:
    """Whether a model is one of the hub, not a folder and not the address of another store."""
    return "://" not in model and not Path(model).exists()


def fetch(
    model: str, revision: str | None, download: Callable[[], object], cache: str | None = None
) -> None:
    """Calls `download`, which fetches a model of a hub into a cache folder.

    Errors are only logged: the library that loads the model may find all files in the cache, and
    else raises a better message. A cache that cannot be written was filled beforehand.
    """
    if constants.HF_HUB_OFFLINE or not is_hub_model(model):
        return
    _remove_abandoned(
        Path(cache or constants.HF_HUB_CACHE) / "--".join(("models", *model.split("/")))
    )
    log.info("model_fetching", model=model, revision=revision)
    began_at = time.monotonic()
    try:
        download()
    except Exception as error:
        is_read_only = isinstance(error, OSError) and error.errno in READ_ONLY
        write_log = log.debug if is_read_only else log.warning
        write_log("model_not_fetched", model=model, revision=revision, error=str(error)[:300])
    else:
        seconds = round(time.monotonic() - began_at, 1)
        log.info("model_fetched", model=model, revision=revision, seconds=seconds)


def fetch_snapshot(model: str, revision: str | None) -> str | None:
    """Fetches the files that PyTorch needs and returns their commit, which is the same for every
    child of the node; `revision` where the commit cannot be known.
    """
    if constants.HF_HUB_OFFLINE or not is_hub_model(model):
        return revision
    try:
        commit = HfApi().resolve_revision(model, revision=revision).resolved
    except Exception as error:
        log.warning("model_not_resolved", model=model, revision=revision, error=str(error)[:300])
        return revision
    fetch(model, commit, lambda: _download_snapshot(model, commit))
    return commit


def _download_snapshot(model: str, commit: str) -> None:
    """The files that transformers and sentence-transformers load; they fetch any others."""
    folder = snapshot_download(
        model, revision=commit, allow_patterns=_in_modules(*SMALL_FILES, "model*.safetensors")
    )
    if not any(Path(folder).rglob("*.safetensors")):
        snapshot_download(model, revision=commit, allow_patterns=_in_modules("pytorch_model*.bin"))


def _in_modules(*names: str) -> list[str]:
    """Patterns for names in the model's folder and in those of sentence-transformers' modules."""
    return [pattern for name in names for pattern in (name, f"[0-9]_*/{name}")]


def _remove_abandoned(model_folder: Path) -> None:
    """Removes the half-fetched files of killed processes, each as large as the model."""
    for file in (model_folder / "blobs").glob("*.incomplete"):
        try:
            if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                file.unlink()
                log.info("half_fetched_removed", file=str(file))
        except OSError as error:
            log.info("half_fetched_stays", file=str(file), error=str(error))
