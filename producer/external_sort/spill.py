"""The folder of temporary files of one sort, or of the copies that a plan without a job reads, and the end of
those that killed processes left.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nightshift.common.errors import StorageUnavailable

PREFIX = "nightshift-sort-"

COPIES = "nightshift-copies-"
"""Begins the names of folders with copies of an input that an estimate or a preview reads."""

LOCK = "lock"
"""A file of each folder that its process holds locked, so that the folder of a dead process is known."""


@contextmanager
def spill_folder() -> Iterator[Path]:
    """A folder below that of temporary files (`TMPDIR`), gone afterwards. A file that cannot be written
    there is StorageUnavailable: the disk is full, as a rule.
    """
    try:
        with _folder(PREFIX) as folder:
            yield folder
    except FileNotFoundError:
        raise  # of a file of the input: what it means is said elsewhere
    except OSError as error:
        raise StorageUnavailable(
            f"the rows cannot be sorted in {tempfile.gettempdir()}, the folder of temporary files "
            f"(TMPDIR): {error.strerror or error}"
        ) from error


@contextmanager
def copies_folder() -> Iterator[str]:
    """A folder for copies of an input that no job reads, gone afterwards."""
    with _folder(COPIES) as folder:
        yield str(folder)


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    _remove_left(prefix)
    with ExitStack() as stack:
        yield _made(stack, prefix)


def _made(stack: ExitStack, prefix: str) -> Path:
    """A folder that is locked before it has the name by which others know it."""
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}"))
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


def _remove_left(prefix: str) -> None:
    """Removes the folders of processes that were killed; those of other users stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = _locked(folder / LOCK, flags=0)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
