"""Models of a hub: one process fetches a model, others that share the cache wait for it.

huggingface_hub locks each file of its cache, so that no file is fetched twice at the same time.
This module adds a lock for the whole model. One process fetches and logs that, the others log that
they wait, and none asks the hub again for a commit that was fetched. This module also removes the
half-fetched files of killed processes: each try writes a file with a name of its own, which
huggingface_hub never removes. The lock is the kernel's and ends with the process that holds it, in
any container.
"""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, snapshot_download

log = structlog.get_logger(__name__)

LOG_SECONDS = 10.0
"""Pause between two log lines of a process that waits."""

POLL_SECONDS = 0.25
"""Pause between two tries for the lock."""

ABANDONED_SECONDS = 600.0
"""A half-fetched file to which nothing was written for so long belongs to no live process."""

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a cache that cannot be written."""

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Configuration and tokenizer, in the model's folder and in those of sentence-transformers."""


def is_hub_model(model: str) -> bool:
    """Whether a model is one of the hub, not a folder and not the address of another store."""
    return "://" not in model and not Path(model).exists()


def fetch_once(
    model: str,
    revision: str | None,
    library: str,
    download: Callable[[], object],
    cache: str | None = None,
) -> None:
    """Calls `download` in one of the processes that share the cache folder, while those that want
    the same model, revision and library wait. Once a commit was fetched, no process calls it.

    Does nothing where nothing is to fetch. Errors are only logged: the library that loads the model
    may find all files in the cache, and else raises a better message. A cache that cannot be
    written was filled beforehand.
    """
    folder = Path(cache or constants.HF_HUB_CACHE)
    name = "--".join(("models", *model.split("/")))
    stem = f"nightshift-{library}-{(revision or 'main').replace('/', '--')}"
    done = folder / ".locks" / name / f"{stem}.fetched"
    files = folder / name / "snapshots" / (revision or "main")

    def is_here() -> bool:
        return done.exists() and files.is_dir()

    if constants.HF_HUB_OFFLINE or not is_hub_model(model) or is_here():
        return
    try:
        with _locked(done.with_suffix(".lock"), model):
            if not is_here():
                began_at = time.monotonic()
                _remove_abandoned(folder / name)
                download()
                seconds = round(time.monotonic() - began_at, 1)
                log.info("model_fetched", model=model, revision=revision, seconds=seconds)
                if files.is_dir():  # the folder of a commit; a branch changes
                    done.touch()
    except Exception as error:
        is_read_only = isinstance(error, OSError) and error.errno in READ_ONLY
        write_log = log.debug if is_read_only else log.warning
        write_log("model_not_fetched", model=model, revision=revision, error=str(error)[:300])


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

    def download() -> None:
        files = HfApi().list_repo_files(model, revision=commit)
        snapshot_download(model, revision=commit, allow_patterns=_patterns(files))

    fetch_once(model, commit, "transformers", download)
    return commit


def _patterns(files: Sequence[str]) -> list[str]:
    """Patterns of the files that transformers and sentence-transformers load; they fetch others."""
    small = [pattern for name in SMALL_FILES for pattern in (name, f"[0-9]_*/{name}")]
    if any(name.endswith(".safetensors") for name in files):
        return [*small, "model*.safetensors", "[0-9]_*/model*.safetensors"]
    return [*small, "pytorch_model*.bin", "[0-9]_*/pytorch_model*.bin"]


@contextmanager
def _locked(path: Path, model: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a fallback: a lock file of a killed process would stay. On a file system without locks,
    # huggingface_hub alone decides.
    lock = FileLock(path, mode=0o664, fallback_to_soft=False)
    began_at = time.monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOG_SECONDS, poll_interval=POLL_SECONDS)
        except Timeout:
            log.info("model_awaited", model=model, seconds=round(time.monotonic() - began_at))
    try:
        yield
    finally:
        lock.release()


def _remove_abandoned(model_folder: Path) -> None:
    """Removes the half-fetched files of killed processes, each as large as the model."""
    for file in (model_folder / "blobs").glob("*.incomplete"):
        try:
            if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                file.unlink()
                log.info("half_fetched_removed", file=str(file))
        except OSError as error:
            log.info("half_fetched_stays", file=str(file), error=str(error))
