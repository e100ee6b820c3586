"""Syncs of local directories: threads share one, and many files of one thread wait for one."""

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
    """For many files at once: a directory in which this thread writes or moves local files is
    synced once, at the end, and what was written or moved is durable only then. Raises
    StorageUnavailable there. Not to be nested.
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
    """Now, or at the end of this thread's `gathered_syncs`."""
    gathered = _gathered()
    if gathered is None:
        sync_now(path)
    else:
        gathered[path] = None


def sync_now(path: Path) -> None:
    """One sync serves every thread that asked for it before it began."""
    _syncs_of(path).submit(None)


def _gathered() -> dict[Path, None] | None:
    found: dict[Path, None] | None = getattr(_of_thread, "gathered", None)
    return found


@lru_cache(maxsize=256)
def _syncs_of(path: Path) -> GroupCommit[None, Literal[True]]:
    """One for each directory: a mount that hangs stops only its own files.

    After an eviction there may be two for one directory, each of which syncs for those it has.
    """
    return GroupCommit(partial(_synced, path), most=1024)


def _synced(path: Path, wishes: Sequence[None]) -> list[Literal[True]]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return [True] * len(wishes)
