"""The folder of temporary files of one sort, and the end of those that killed processes left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nightshift.common.errors import StorageUnavailable

PREFIX = "nightshift-sort-"

LOCK = "lock"
"""A file of each folder that its process holds locked, so that the folder of a dead process is known."""


@contextmanager
def spill_folder() -> Iterator[Path]:
    """A folder below that of temporary files (`TMPDIR`), gone afterwards. A file that cannot be written
    there is StorageUnavailable: the disk is full, as a rule.
    """
    try:
        _remove_left()
        with ExitStack() as stack:
            yield _made(stack)
    except FileNotFoundError:
        raise  # of a file of the input: what it means is said elsewhere
    except OSError as error:
        raise StorageUnavailable(
            f"the rows cannot be sorted in {tempfile.gettempdir()}, the folder of temporary files "
            f"(TMPDIR): {error.strerror or error}"
        ) from error


def _made(stack: ExitStack) -> Path:
    """A folder that is locked before it has the name by which others know it."""
    new = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    folder = new.with_name(new.name.removeprefix("new-"))
    for each in (new, folder):
        stack.callback(shutil.rmtree, each, ignore_errors=True)
    with suppress(OSError):  # without locks here, nobody removes what a killed process left
        stack.callback(os.close, _locked(new / LOCK))
    return new.rename(folder)


def _locked(file: Path, flags: int = os.O_CREAT) -> int:
    """The file's descriptor, with its lock; BlockingIOError while another process has the lock."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left() -> None:
    """Removes the folders of processes that ended in mid-sort; those of other users stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = _locked(folder / LOCK, flags=0)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
