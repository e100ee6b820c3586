"""Files on local disk: facts, whole writes, directories, renames; what is written is fsynced.

Threads share the sync of a directory, and so do many files of one caller.
"""

import errno
import os
import stat as modes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import lru_cache, partial
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Literal

from nightshift.common.errors import BadInput, UnfinishedGone
from nightshift.common.group_commit import GroupCommit
from nightshift.common.public_text import private
from nightshift.common.storage import links as places
from nightshift.common.storage import unfinished, walls
from nightshift.common.storage.addresses import is_local
from nightshift.common.storage.driver_errors import guard, reason, writing
from nightshift.common.storage.links import Place, placed
from nightshift.common.storage.streams import Content, FileInfo, Naming, Written, fill

NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system that has no hard links."""


class Syncs:
    """Directories that a caller syncs once for many files: these are durable after `finish`, and not before."""

    def __init__(self) -> None:
        self._folders: dict[Path, None] = {}

    def add(self, folder: Path) -> None:
        """Sync a directory at the end."""
        self._folders[folder] = None

    def finish(self) -> None:
        """Sync each directory once. Raises StorageUnavailable."""
        while self._folders:
            folder, _ = self._folders.popitem()
            with writing(str(folder)):
                _sync_now(folder)


def info(path: Path, *, links: bool = True) -> FileInfo:
    """The file as it is now; FileNotFoundError for a directory and, without `links`, for a link,
    BadInput for a device or pipe.
    """
    with guard("read", str(path)), placed(path, links=links) as place:
        facts = place.stat(links=links)
        if modes.S_ISDIR(facts.st_mode) or modes.S_ISLNK(facts.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if not modes.S_ISREG(facts.st_mode):
        raise BadInput(places.NO_FILE.format(path))
    return FileInfo(str(path), facts.st_size, str(facts.st_mtime_ns))


def open_file(path: Path, *, links: bool = True) -> FileIO:
    """An unbuffered file to read; OSError for a link without `links`."""
    with placed(path, links=links) as place:
        return open(place.name, "rb", buffering=0, opener=place.opener(links=links))


def write(
    path: Path,
    content: Content,
    replace: bool,
    job_id: int | None = None,
    naming: Naming = nullcontext,
    syncs: Syncs | None = None,
) -> Written:
    """Writes under the final name, or with `replace` under another name, which carries `job_id` and is
    renamed inside `naming`.
    """
    uri = str(path)
    make_directory(path.parent)
    with ExitStack() as stack:
        with writing(uri):
            final = stack.enter_context(placed(path))
            in_the_way = _is_no_file(final)
            if replace:  # a link under the name gives way itself
                final = stack.enter_context(placed(path, links=False))
        if in_the_way:
            # A failed write removes its file, and `replace` renames over the old one: neither may
            # happen to a device, a pipe or a directory.
            raise BadInput(f"{private(uri)} is no regular file and cannot be written: name another")
        place = final.beside(job_id) if replace else final
        return _write(place, final, path, content, naming, syncs)


def _write(
    place: Place, final: Place, path: Path, content: Content, naming: Naming, syncs: Syncs | None
) -> Written:
    uri = str(path)
    with writing(uri):
        raw = open(place.name, "wb", buffering=0, opener=place.opener())  # noqa: SIM115
    try:
        with raw:
            # Until the file has its name: a sweep leaves what somebody writes.
            unfinished.hold(raw.fileno())
            written = fill(raw, uri, content)
            with writing(uri):
                os.fsync(raw.fileno())
            if place is not final:
                with naming(), writing(uri):
                    _rename_unfinished(place, final, uri)
        with writing(uri):
            _sync_directory(path.parent, syncs)
    except BaseException:
        with suppress(OSError):
            place.unlink()
        raise
    return written


def _rename_unfinished(place: Place, final: Place, uri: str) -> None:
    try:
        place.rename(final)
    except FileNotFoundError as error:
        raise UnfinishedGone(
            f"{private(uri)} cannot be written: the unfinished file beside it was removed"
        ) from error


def left(folder: Path, ours: Callable[[str], bool]) -> list[Path]:
    """Unfinished files in a folder that nobody writes any more, of those that were to become `ours`."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in places.names(folder):
            final = unfinished.final_name(name)
            if final is not None and ours(final):
                with suppress(OSError), placed(folder / name, links=False) as place:
                    found += [folder / name] if unfinished.is_left(place) else []
    return found


def with_job(folder: Path) -> list[Path]:
    """Unfinished files in a folder that carry the number of a job, those that somebody writes included."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [folder / name for name in places.names(folder) if unfinished.has_job(name)]
    return []


def _is_no_file(place: Place) -> bool:
    with suppress(FileNotFoundError):
        return not modes.S_ISREG(place.stat().st_mode)
    return False


def create(path: Path, data: bytes) -> bool:
    """Writes a file unless something of that name is there; False where something is.

    A hard link gives the whole file its name, so that no reader and no crash ever sees half of it.
    Where the file system has no hard links, the file is made under its name at once.
    """
    whole = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write(whole, lambda sink: sink.write(data), replace=False)
    with (
        writing(str(path)),
        placed(path, links=False) as final,
        placed(whole, links=False) as written,
    ):
        try:
            written.link(final)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            raise UnfinishedGone(
                f"{private(path)} cannot be written: the unfinished file beside it was removed"
            ) from error
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            with (
                suppress(FileExistsError),
                open(final.name, "xb", opener=final.opener(links=False)) as file,
            ):
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                return True
            return False
        finally:
            with suppress(FileNotFoundError):
                written.unlink()
            _sync_now(path.parent)
    return True


def make_directory(path: Path) -> None:
    """Makes missing parents too; BadInput where a file is in the way."""
    with guard("made", str(path), missing_is_outage=True):
        try:
            _make(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(
                f"{private(path)} cannot be a directory: there is a file in the way"
            ) from error


def try_directory(path: Path) -> None:
    """BadInput where the directory cannot be written to, or cannot be made.

    Makes a folder in it, or in the nearest one around it, and removes the folder: permissions alone do
    not tell of a full disk, or of a file system that cannot be written.
    """
    for there in (path, *path.parents):
        try:
            with _probed(path, there) as folder:
                name = f".nightshift-{os.urandom(6).hex()}"
                os.mkdir(name, 0o700, dir_fd=folder)
                os.rmdir(name, dir_fd=folder)
                return
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(there):
                raise BadInput(
                    f"{private(path)} cannot be a directory: {private(there)} is a file"
                ) from error
        except OSError as error:
            done = "written" if there == path else f"made, since nothing can be made in {there}"
            raise BadInput(f"{private(path)} cannot be {done}: {reason(error)}") from error


def _probed(path: Path, there: Path) -> AbstractContextManager[int]:
    """A directory around `path`, or the one itself, open. What lies around a root that is not there yet
    is the operator's, who named the root.
    """
    held = walls.around(path)
    is_around = any(
        Path(root).is_relative_to(there) and str(there) not in wall.roots
        for wall in held
        for root in wall.roots
        if is_local(root)
    )
    return places.plainly_opened(there) if is_around else places.opened(there)


def folder_identity(path: Path) -> walls.Identity:
    """Device and inode of a directory; OSError where there is none."""
    with places.opened(path) as folder:
        return walls.identity(os.fstat(folder))


def rename(source: Path, target: Path, syncs: Syncs | None = None) -> None:
    """Rename a file, and sync both directories, now or with `syncs`."""
    _make(target.parent)
    with placed(source, links=False) as old, placed(target, links=False) as new:
        old.rename(new)
    for folder in {target.parent, source.parent}:
        _sync_directory(folder, syncs)


def delete(path: Path) -> None:
    """Removes a file, or a link itself."""
    with placed(path, links=False) as place:
        place.unlink()


def remove_directory(path: Path) -> None:
    """Removes an empty directory; OSError where it has files."""
    with placed(path, links=False) as place:
        place.remove_folder()


def _make(path: Path) -> None:
    """Makes missing parents too and syncs every directory that got a new name in it."""
    if walls.around(path):
        places.make(path, _sync_open)
        return
    if path.is_dir():
        return
    missing = list(takewhile(lambda at: not at.is_dir(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync_now(made.parent)


def _sync_directory(path: Path, syncs: Syncs | None) -> None:
    if syncs is None:
        _sync_now(path)
    else:
        syncs.add(path)


def _sync_now(path: Path) -> None:
    """Syncs a directory; one sync serves all threads that asked before it began."""
    syncs_of(path).submit(None)


@lru_cache(maxsize=256)
def syncs_of(path: Path) -> GroupCommit[None, Literal[True]]:
    """The shared syncs of one directory: a mount that hangs stops only its own files.

    After an eviction one directory may have two, and each syncs for its own callers.
    """
    return GroupCommit(partial(synced, path), most=1024)


def synced(path: Path, wishes: Sequence[None]) -> list[Literal[True]]:
    """Brings what is in a folder to its disk, once for all who wish it."""
    with places.opened(path) as handle:
        os.fsync(handle)
    return [True] * len(wishes)


def _sync_open(folder: int) -> None:
    """Syncs a folder that is open as a mere place."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
