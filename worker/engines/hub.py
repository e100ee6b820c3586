"""Models of a hub: fetched by one process of all that share a cache, while the others wait.

huggingface_hub itself locks each file beside its cache, so no file is fetched twice at the same
time. What this adds: a lock for the whole model, so that one process does the fetching and says so,
those that wait say so now and then, and what a killed process left half fetched is removed (each
try writes a file of its own, and nobody else ever removes it). The lock is the kernel's: it ends
with its holder, in whichever container that was.
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

SAY_SECONDS = 10.0
"""Pause between two log lines of a process that waits."""

LOOK_SECONDS = 0.25
"""Pause between two tries for the lock."""

LEFT_SECONDS = 600.0
"""A half-fetched file that nobody has written to for so long has nobody who writes it."""

NOWHERE_TO_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a cache that is only read."""

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
"""Configuration and tokenizer, at the root and in the folders of sentence-transformers' modules."""


def is_hub_model(model: str) -> bool:
    """Whether a name is one of the hub: neither a folder nor the address of another store."""
    return "://" not in model and not Path(model).exists()


def fetch_once(
    model: str,
    revision: str | None,
    library: str,
    download: Callable[[], object],
    cache: str | None = None,
) -> None:
    """Calls `download` in one process of all that share the cache folder, while others of the same
    model, revision and library wait; in none any more once it was done for a commit.

    Without a word where there is nothing to fetch, or nowhere to write: a cache that was filled
    beforehand. What goes wrong is logged: the library that loads the model says it better, and may
    find all it needs in the cache.
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
        with _alone(done.with_suffix(".lock"), model):
            if not is_here():
                began_at = time.monotonic()
                _remove_left(folder / name)
                download()
                seconds = round(time.monotonic() - began_at, 1)
                log.info("model_fetched", model=model, revision=revision, seconds=seconds)
                if files.is_dir():  # named by the commit; a branch may move on
                    done.touch()
    except Exception as error:
        nowhere = isinstance(error, OSError) and error.errno in NOWHERE_TO_WRITE
        say = log.debug if nowhere else log.warning
        say("model_not_fetched", model=model, revision=revision, error=str(error)[:300])


def fetch_snapshot(model: str, revision: str | None) -> str | None:
    """Fetches the files that PyTorch needs; returns the commit that they are of, which every other
    child of the node then loads too, or `revision` where nobody can say.
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
        snapshot_download(model, revision=commit, allow_patterns=_wanted(files))

    fetch_once(model, commit, "transformers", download)
    return commit


def _wanted(files: Sequence[str]) -> list[str]:
    """Patterns of what transformers and sentence-transformers load; more they fetch themselves."""
    small = [pattern for name in SMALL_FILES for pattern in (name, f"[0-9]_*/{name}")]
    if any(name.endswith(".safetensors") for name in files):
        return [*small, "model*.safetensors", "[0-9]_*/model*.safetensors"]
    return [*small, "pytorch_model*.bin", "[0-9]_*/pytorch_model*.bin"]


@contextmanager
def _alone(path: Path, model: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Where a file system knows no locks, what huggingface_hub does has to do.
    lock = FileLock(path, mode=0o664, fallback_to_soft=False)
    began_at = time.monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=SAY_SECONDS, poll_interval=LOOK_SECONDS)
        except Timeout:
            log.info("model_awaited", model=model, seconds=round(time.monotonic() - began_at))
    try:
        yield
    finally:
        lock.release()


def _remove_left(model_folder: Path) -> None:
    """Removes what killed processes left half fetched, as large as the model each time."""
    for left in (model_folder / "blobs").glob("*.incomplete"):
        try:
            if time.time() - left.stat().st_mtime > LEFT_SECONDS:
                left.unlink()
                log.info("half_fetched_removed", file=str(left))
        except OSError as error:
            log.info("half_fetched_stays", file=str(left), error=str(error))
