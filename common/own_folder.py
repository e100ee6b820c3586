"""A temporary folder of this process, and the end of the folders that killed processes left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

LOCK = "lock"
"""A file of each folder that its process holds locked, so that the folder of a dead process is known."""


@contextmanager
def own_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder whose name begins with `prefix`, gone afterwards; in `parent`, or in the folder of temporary files
    (`TMPDIR`). Folders of this prefix go whose processes were killed; those of other users stay. Hosts
    that share the folder must see each other's locks. Raises OSError where a folder cannot be made.
    """
    where = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_left(where, prefix)
    with ExitStack() as stack:
        yield _made(stack, where, prefix)


def _made(stack: ExitStack, where: Path, prefix: str) -> Path:
    """A folder that is locked before it has the name by which others know it."""
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=where))
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


def _remove_left(where: Path, prefix: str) -> None:
    for folder in where.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = _locked(folder / LOCK, flags=0)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
