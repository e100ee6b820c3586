"""Syncs of local directories: threads share a sync, and so do many files of one thread."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

from nightshift.common.group_commit import GroupCommit
from nightshift.common.storage.driver_errors import writing

_of_thread = threading.local()


@contextmanager
def gathered_syncs() -> Iterator[None]:
    """Syncs each directory in which this thread writes or moves local files once, at the end.

    The files are durable only after that. Raises StorageUnavailable at the end. Not to be nested.
    """
    folders: dict[Path, None] = {}
    _of_thread.gathered = folders
    try:
        yield
    finally:
        del _of_thread.gathered
        for folder in folders:
            with writing(str(folder)):
                sync_now(folder)


def sync_directory(path: Path) -> None:
    """Syncs a directory now, or at the end of this thread's `gathered_syncs`."""
    gathered = _gathered()
    if gathered is None:
        sync_now(path)
    else:
        gathered[path] = None


def sync_now(path: Path) -> None:
    """Syncs a directory; one sync serves all threads that asked before it began."""
    _syncs_of(path).submit(None)


def _gathered() -> dict[Path, None] | None:
    found: dict[Path, None] | None = getattr(_of_thread, "gathered", None)
    return found


@lru_cache(maxsize=256)
def _syncs_of(path: Path) -> GroupCommit[None, Literal[True]]:
    """The shared syncs of one directory: a mount that hangs stops only its own files.

    After an eviction one directory may have two, and each syncs for its own callers.
    """
    return GroupCommit(partial(_synced, path), most=1024)


def _synced(path: Path, wishes: Sequence[None]) -> list[Literal[True]]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return [True] * len(wishes)
