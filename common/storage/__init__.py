"""What is done with a file by its address, on local disk and in object stores alike.

This is the face of the room: callers write `storage.stat(uri)`.

Local files go through the operating system, so that writes can be fsynced; everything with a
scheme goes through fsspec. A missing file is FileNotFoundError, and the caller decides what that
means; any other error of a driver is StorageUnavailable.
"""

import errno
import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from nightshift.common.errors import (
    DeleteRefused,
    Permanent,
    StorageUnavailable,
    UnfinishedGone,
)
from nightshift.common.public_text import marked, private
from nightshift.common.storage import local, objects
from nightshift.common.storage.addresses import (
    SETTING,
    as_typed,
    check_held,
    check_roots,
    enclosing,
    fixed_folder,
    is_local,
    is_pattern_over,
    local_path,
    resolve,
)
from nightshift.common.storage.driver_errors import guard, reason
from nightshift.common.storage.links import OWN_FOLDERS
from nightshift.common.storage.listing import Listing, expand, folders, list_names, listing
from nightshift.common.storage.local import Syncs
from nightshift.common.storage.objects import driver_of
from nightshift.common.storage.streams import Content, FileInfo, Naming, Written, checked_reader
from nightshift.common.storage.walls import (
    OF_JOB,
    carried,
    check_object,
    is_held,
    keep_within,
    unheld,
    within,
)

__all__ = [
    "OF_JOB",
    "OWN_FOLDERS",
    "SETTING",
    "FileInfo",
    "Listing",
    "Syncs",
    "Written",
    "as_typed",
    "carried",
    "check_held",
    "check_object",
    "check_roots",
    "driver_of",
    "enclosing",
    "expand",
    "fixed_folder",
    "folders",
    "is_held",
    "is_local",
    "is_pattern_over",
    "keep_within",
    "list_names",
    "listing",
    "resolve",
    "unheld",
    "within",
]
"""What other files of the room define; the rest is here."""

BUFFER_BYTES = 64 * 1024
SEQUENTIAL_BUFFER_BYTES = 256 * 1024
"""Buffer of an open file; more than 256 KiB gains little for reading lines (measured)."""

READ_AHEAD_BYTES = 8 * 2**20
"""Bytes of an object that one request of a sequential read fetches."""


def stat(uri: str, *, links: bool = True) -> FileInfo:
    """The file as it is now; FileNotFoundError when there is no file. A directory is no file, and
    without `links` a link is none.
    """
    return local.info(local_path(uri), links=links) if is_local(uri) else objects.info(uri)


def exists(uri: str, *, links: bool = True) -> bool:
    """True when there is a file of that name, as `stat` sees it."""
    with suppress(FileNotFoundError):
        stat(uri, links=links)
        return True
    return False


def open_input(uri: str, *, sequential: bool = False, links: bool = True) -> io.BufferedReader:
    """A seekable binary file; FileNotFoundError when the file is gone.

    Errors of reading are StorageUnavailable, a link without `links` among them. So what pyarrow
    raises while it reads the file is about the content. `sequential` reads objects ahead; else only
    the wanted bytes are fetched.
    """
    with guard("read", uri):
        if is_local(uri):
            raw: Any = local.open_file(local_path(uri), links=links)
        else:
            fs, path = driver_of(uri)
            ahead = {"cache_type": "readahead", "block_size": READ_AHEAD_BYTES}
            raw = fs.open(path, "rb", **(ahead if sequential else {"cache_type": "none"}))
    buffer_bytes = SEQUENTIAL_BUFFER_BYTES if sequential else BUFFER_BYTES
    return checked_reader(raw, uri, buffer_bytes)


def read_range(uri: str, offset: int, length: int) -> bytes:
    """The bytes from `offset` to `offset + length`; fewer when the file ends before that."""
    if is_local(uri):
        with open_input(uri) as handle:
            handle.seek(offset)
            return handle.read(length)
    fs, path = driver_of(uri)
    with guard("read", uri):
        return bytes(fs.cat_file(path, start=offset, end=offset + length)) if length else b""


def write_whole(
    uri: str, content: Content, *, replace: bool = False, syncs: Syncs | None = None
) -> Written:
    """Writes a file by calling `content` with an unseekable binary file, and hashes its bytes.

    On local disk the file gets its given name at once, then file and directory are fsynced;
    `replace` writes beside it and renames, for names that readers may hold open. On object
    stores the bytes are spooled to local disk and put when they are complete, so no reader ever
    sees half a file. With `syncs` the directory is synced at its `finish`. A write that fails removes what it wrote, as far as it can.
    Raises BadInput when `uri` is there and is no regular file, StorageUnavailable.
    """
    if is_local(uri):
        return local.write(local_path(uri), content, replace, syncs=syncs)
    return objects.write(uri, content)


def write_owned(uri: str, content: Content, job_id: int, naming: Naming) -> Written:
    """`write_whole` that replaces, of a file about a job: it gets its name inside `naming`, and is called
    `.NAME.jobN.…` until then, so that `owned_unfinished` finds it. An object is put inside `naming`.
    """
    if is_local(uri):
        return local.write(local_path(uri), content, True, job_id, naming)
    return objects.write(uri, content, naming)


def write_streamed(uri: str, content: Content) -> Written:
    """`write_whole` of a file that may be larger than the local disk: on S3 its bytes go there as they
    come. Nobody sees an object before it is whole.
    """
    return write_whole(uri, content) if is_local(uri) else objects.stream(uri, content)


def write_bytes(
    uri: str, data: bytes | memoryview, *, replace: bool = True, syncs: Syncs | None = None
) -> Written:
    """Writes a whole file; with `replace` readers see either the old file or the new one."""
    return write_whole(uri, lambda sink: sink.write(data), replace=replace, syncs=syncs)


def hold(uri: str, roots: Sequence[str]) -> None:
    """BadInput for an output directory outside the roots of this process. Whatever is opened in it from now
    on is held to them.
    """
    check_roots([uri], roots)
    keep_within(uri, roots or None, SETTING)


def folder_identity(uri: str) -> tuple[int, int] | None:
    """The identity of a local directory: another directory that takes its name later has another one. None for a
    directory that is not there, cannot be reached now, or is in an object store. BadInput for one outside a wall.
    """
    with suppress(OSError):
        if is_local(uri):
            return local.folder_identity(local_path(uri))
    return None


_made_again = retry(
    retry=retry_if_exception_type(UnfinishedGone), stop=stop_after_attempt(3), reraise=True
)
"""Once more where somebody, in a file system without locks, took the unfinished file for one that was left."""


@_made_again
def write_again(uri: str, content: Content) -> Written:
    """`write_whole` that replaces, of `content` that can be called again."""
    return write_whole(uri, content, replace=True)


@_made_again
def create(uri: str, data: bytes) -> bool:
    """Writes a small file whole unless there is one of that name; False where there is one."""
    return local.create(local_path(uri), data) if is_local(uri) else objects.create(uri, data)


def move(
    source: str, target: str, size_bytes: int | None = None, syncs: Syncs | None = None
) -> None:
    """Gives a file its final name: rename on local disk, copy then delete on object stores.

    A move may be done twice, or by two processes at once. A missing source with a target in place
    is success; a copy whose source was not deleted yet is finished. A link is no file. `size_bytes`
    is the size of the file where the caller knows it, which spares a request; with `syncs` the directories are
    synced at its `finish`. Raises
    FileNotFoundError when both files are missing, Permanent when the target has other content.
    """
    try:
        _move(source, target, size_bytes, syncs)
    except FileNotFoundError:
        if not exists(target, links=False):
            raise


def _move(source: str, target: str, size_bytes: int | None, syncs: Syncs | None) -> None:
    if is_local(source) != is_local(target):
        raise ValueError("a file moves within one store")
    if exists(target, links=False):
        # Either an earlier copy did not delete its source, or the two are different files.
        if stat(source).size != stat(target).size or checksum(source) != checksum(target):
            raise Permanent(
                f"{private(source)} cannot be moved: {private(target)} holds something else"
            )
        delete(source)
        return
    if is_local(source):
        with guard("moved", source):
            local.rename(local_path(source), local_path(target), syncs)
        return
    objects.copy(source, target, size_bytes)
    delete(source)


def delete(uri: str) -> None:
    """Removes a file; a file that is gone already is no error. Raises DeleteRefused where it may not
    be removed or is a folder, StorageUnavailable on outages.
    """
    try:
        with suppress(FileNotFoundError), guard("deleted", uri):
            if is_local(uri):
                local.delete(local_path(uri))
            else:
                fs, path = driver_of(uri)
                fs.rm_file(path)
    except StorageUnavailable as error:
        if isinstance(error.__cause__, PermissionError | IsADirectoryError):
            raise DeleteRefused(marked(error)) from error.__cause__
        raise


def delete_all(uris: Iterable[str]) -> list[str]:
    """Removes files; returns why those stay that the store does not let go."""
    refused = []
    for uri in uris:
        try:
            delete(uri)
        except DeleteRefused as error:
            refused.append(str(error))
    return refused


def left_unfinished(folder: str, ours: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Unfinished files that killed processes left in a local folder, of those that were to become files of
    `ours`, by their names. What somebody writes now is none. Object stores show no unfinished object.
    """
    if not is_local(folder):
        return []
    with guard("listed", folder):
        return [str(path) for path in local.left(local_path(folder), ours)]


def owned_unfinished(folder: str) -> list[str]:
    """Unfinished files of `write_owned` in a local folder, those that somebody writes included."""
    if not is_local(folder):
        return []
    with guard("listed", folder):
        return [str(path) for path in local.with_job(local_path(folder))]


def check_directory(uri: str) -> None:
    """BadInput when a local directory cannot be written to, or cannot be made; leaves nothing.

    Object stores are not checked.
    """
    if is_local(uri):
        local.try_directory(local_path(uri))


def remove_directory(uri: str) -> None:
    """Removes a directory if it is there and empty; one that may not be removed stays."""
    if not is_local(uri):
        return
    try:
        with suppress(FileNotFoundError):
            local.remove_directory(local_path(uri))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM):
            raise StorageUnavailable(
                f"{private(uri)} cannot be removed: {reason(error)}"
            ) from error


def checksum(uri: str) -> str:
    """SHA-256 of a file in hexadecimal digits, read as a stream; StorageUnavailable for a link."""
    with open_input(uri, sequential=True, links=False) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
