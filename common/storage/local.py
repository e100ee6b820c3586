"""Files on local disk: facts, whole writes, directories, renames; what is written is fsynced.

Threads share the sync of a directory, and so do many files of one thread.
"""

import errno
import os
import stat as modes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Literal

from nightshift.common.errors import BadInput
from nightshift.common.group_commit import GroupCommit
from nightshift.common.storage.driver_errors import guard, writing
from nightshift.common.storage.streams import Content, FileInfo, Written, fill

_of_thread = threading.local()


def info(path: Path) -> FileInfo:
    """The file as it is now; FileNotFoundError for a directory, BadInput for a device or pipe."""
    with guard("read", str(path)):
        facts = path.stat()
        if modes.S_ISDIR(facts.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if not modes.S_ISREG(facts.st_mode):
        raise BadInput(f"{path} is no regular file: copy its content into one")
    return FileInfo(str(path), facts.st_size, str(facts.st_mtime_ns))


def write(path: Path, content: Content, replace: bool) -> Written:
    """Writes under the final name, or with `replace` under another name that is then renamed."""
    uri = str(path)
    with writing(uri):
        in_the_way = path.exists() and not path.is_file()
    if in_the_way:
        # A failed write removes its file, and `replace` renames over the old one: neither may
        # happen to a device, a pipe or a directory.
        raise BadInput(f"{uri} is no regular file and cannot be written: name another")
    make_directory(path.parent)
    place = path.with_name(f".{path.name}.{os.urandom(6).hex()}") if replace else path
    with writing(uri):
        raw = place.open("wb", buffering=0)
    try:
        with raw:
            written = fill(raw, uri, content)
            with writing(uri):
                os.fsync(raw.fileno())
        with writing(uri):
            if replace:
                place.replace(path)
            _sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            place.unlink()
        raise
    return written


def make_directory(path: Path) -> None:
    """Makes missing parents too; BadInput where a file is in the way."""
    with guard("made", str(path)):
        try:
            _make(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(f"{path} cannot be a directory: there is a file in the way") from error


def rename(source: Path, target: Path) -> None:
    """Renames a file, and syncs both directories."""
    _make(target.parent)
    source.rename(target)
    for folder in {target.parent, source.parent}:
        _sync_directory(folder)


def _make(path: Path) -> None:
    """Makes missing parents too and syncs every directory that got a new name in it."""
    if path.is_dir():
        return
    missing = list(takewhile(lambda at: not at.is_dir(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync_now(made.parent)


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
                _sync_now(folder)


def _sync_directory(path: Path) -> None:
    """Syncs a directory now, or at the end of this thread's `gathered_syncs`."""
    gathered: dict[Path, None] | None = getattr(_of_thread, "gathered", None)
    if gathered is None:
        _sync_now(path)
    else:
        gathered[path] = None


def _sync_now(path: Path) -> None:
    """Syncs a directory; one sync serves all threads that asked before it began."""
    _syncs_of(path).submit(None)


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
