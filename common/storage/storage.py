"""The one storage module: list, read, write whole, move, delete; local disk and object stores.

Local files go through the operating system, so that writes can be fsynced; everything with a
scheme goes through fsspec. A missing file is FileNotFoundError, which callers decide about; any
other error of a driver is StorageUnavailable, told by its type.
"""

import errno
import fnmatch
import hashlib
import io
import os
import re
import stat as modes
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol
from urllib.parse import unquote

import fsspec
from fsspec.registry import known_implementations

from nightshift.common.errors import BadInput, Permanent, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.group_commit import Grouped
from nightshift.common.text import escaped, has_half_characters

OBJECT_STORES = ("s3", "gs", "abfs", "memory")
"""Schemes that work when their driver is installed; `memory` lives in one process, for tests."""

_ALIASES = {"s3a": "s3", "gcs": "gs", "az": "abfs"}

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_MAGIC = re.compile(r"[*?\[]")

BUFFER_BYTES = 64 * 1024
SEQUENTIAL_BUFFER_BYTES = 256 * 1024
"""Buffer of an open file; more than 256 KiB gains little when lines are read (measured)."""

READ_AHEAD_BYTES = 8 * 2**20
"""What a sequential read of an object asks for at once."""

UPLOAD_PIECE_BYTES = 16 * 2**20
"""Objects of twice this size go up in pieces, ten of them at once in memory."""

_of_thread = threading.local()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it is now: `size` in bytes; `fingerprint` is the etag, else the mtime in ns."""

    uri: str
    size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a write left behind: size in bytes and SHA-256 in hexadecimal digits."""

    bytes: int
    checksum: str


def resolve(uri: str) -> str:
    """The one name of a place: an absolute local path, or scheme://… without a trailing slash.

    Raises BadInput for a scheme that is not supported, and for a name that cannot be kept.
    """
    check_name(uri)
    scheme, rest = _split(uri)
    if not scheme:
        check_name(rest)
        # abspath, not resolve(): a link may point elsewhere on the worker's machine.
        return os.path.abspath(rest)  # noqa: PTH100
    if {".", ".."} & set(rest.split("/")):
        # To a store they are letters; a gateway before it may think otherwise.
        raise BadInput(f"{uri}: the name of an object has no . or .. between its slashes")
    return f"{scheme}://{rest.strip('/')}"


def check_name(uri: str) -> None:
    """BadInput for a name that is no UTF-8 or holds a NUL: the ledger could not keep it."""
    if has_half_characters(uri):
        raise BadInput(f"the name {escaped(uri)!r} is no UTF-8: rename the file or folder")
    if "\x00" in uri:
        raise BadInput(f"the name {uri!r} holds a NUL character")


def check_roots(uris: Iterable[str], roots: Sequence[str]) -> None:
    """BadInput when a uri lies outside every one of `roots`, also by way of a link; no roots allow
    all. What a link points to is asked of this machine.
    """
    if not roots:
        return
    allowed = [resolve(root) for root in roots]
    real = [_real(root) for root in allowed]
    for uri in uris:
        inside = _is_below(uri, allowed) and _is_below(_real(uri), real)
        if not inside:
            raise BadInput(
                f"{uri} is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS names: "
                f"{', '.join(allowed)}"
            )


def _real(uri: str) -> str:
    return str(_local(uri).resolve()) if is_local(uri) else uri


def _is_below(uri: str, roots: Sequence[str]) -> bool:
    bare = [root.rstrip("/") for root in roots]
    return any(uri == root or uri.startswith(f"{root}/") for root in bare)


def is_local(uri: str) -> bool:
    """True for a path on this machine's file system."""
    return not _split(uri)[0]


def expand(uris: Iterable[str]) -> list[FileInfo]:
    """The files that `uris` name (files, directories, globs), sorted by uri over the whole list.

    Directories are walked to the bottom; names that start with `_` or `.` are skipped there and
    where a wildcard would match them. Raises BadInput for what is missing, unreadable, empty or
    named twice, StorageUnavailable when the store does not answer.
    """
    found: dict[str, FileInfo] = {}
    for uri in uris:
        files = _expand_one(resolve(uri))
        for info in files:
            check_name(info.uri)
            if info.uri in found:
                raise BadInput(
                    f"{info.uri} is named twice by the input: its rows would count twice, name "
                    "it once"
                )
            found[info.uri] = info
    return [found[uri] for uri in sorted(found)]


def stat(uri: str) -> FileInfo:
    """The file as it is now; FileNotFoundError when there is none (a directory is none)."""
    if is_local(uri):
        with _guard("read", uri):
            return _local_info(_local(uri))
    fs, path = _remote(uri)
    with _guard("read", uri):
        info = fs.info(path)
    if info["type"] == "directory":
        raise FileNotFoundError(errno.ENOENT, "no such file", uri)
    return _remote_info(uri, info)


def exists(uri: str) -> bool:
    """True when there is a file of that name; a directory is none."""
    with suppress(FileNotFoundError):
        stat(uri)
        return True
    return False


def open_input(uri: str, *, sequential: bool = False) -> io.BufferedReader:
    """A seekable binary file whose own errors are StorageUnavailable, so what pyarrow raises while
    it reads is about the content; FileNotFoundError when it is gone.

    `sequential` reads objects ahead; without it only what is asked for is fetched.
    """
    with _guard("read", uri):
        if is_local(uri):
            raw: Any = _local(uri).open("rb", buffering=0)
        else:
            fs, path = _remote(uri)
            ahead = {"cache_type": "readahead", "block_size": READ_AHEAD_BYTES}
            raw = fs.open(path, "rb", **(ahead if sequential else {"cache_type": "none"}))
    buffer_bytes = SEQUENTIAL_BUFFER_BYTES if sequential else BUFFER_BYTES
    return io.BufferedReader(_Source(raw, uri), buffer_bytes)


def read_range(uri: str, offset: int, length: int) -> bytes:
    """Bytes `offset` to `offset + length`; fewer when the file ends before."""
    if is_local(uri):
        with open_input(uri) as handle:
            handle.seek(offset)
            return handle.read(length)
    fs, path = _remote(uri)
    with _guard("read", uri):
        return bytes(fs.cat_file(path, start=offset, end=offset + length)) if length else b""


def write_whole(uri: str, write: Callable[[BinaryIO], object], *, replace: bool = False) -> Written:
    """Writes a file by calling `write` with an unseekable binary file; hashed on the way.

    On local disk the file gets its given name at once, then file and directory are fsynced;
    `replace` writes beside it and renames, for names that readers may hold open. On object
    stores the bytes are spooled to local disk and put when they are complete, so no reader ever
    sees half a file. What fails leaves no file of ours behind where that can be helped.
    Raises BadInput where something stands that is no regular file, StorageUnavailable.
    """
    if is_local(uri):
        return _write_local(_local(uri), write, replace)
    return _write_remote(uri, write)


def write_bytes(uri: str, data: bytes | memoryview, *, replace: bool = True) -> Written:
    """A file in one go; with `replace` an older one of that name is replaced without a gap."""
    return write_whole(uri, lambda sink: sink.write(data), replace=replace)


def move(source: str, target: str) -> None:
    """Gives a file its final name: rename on local disk, copy then delete on object stores.

    Harmless when it is done twice or by two at once: a source that is gone while the target is
    there is success, and a copy whose delete is missing is finished. Raises FileNotFoundError
    when both are gone, Permanent when the target holds something else.
    """
    try:
        _move(source, target)
    except FileNotFoundError:
        if not exists(target):
            raise


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
            with _writing(str(folder)):
                _sync_now(folder)


def delete(uri: str) -> None:
    """Removes a file; one that is gone already is fine."""
    with suppress(FileNotFoundError), _guard("deleted", uri):
        if is_local(uri):
            _local(uri).unlink()
        else:
            fs, path = _remote(uri)
            fs.rm_file(path)


def list_names(uri: str) -> list[str]:
    """Names of the files and folders directly in a directory, sorted; empty when it is not there.

    Hidden ones too. Raises BadInput for a file.
    """
    with suppress(FileNotFoundError), _guard("listed", uri):
        if is_local(uri):
            if _local(uri).is_file():
                raise BadInput(f"{uri} is a file, not a directory")
            return sorted(child.name for child in _local(uri).iterdir())
        fs, path = _remote(uri)
        names = {str(name).rstrip("/") for name in fs.ls(path, detail=False)}
        # Some stores keep an empty object that stands for the directory itself.
        return sorted(name.rpartition("/")[2] for name in names - {path.rstrip("/")})
    return []


def make_directory(uri: str) -> None:
    """Makes a directory and its parents, durably; object stores have none and need none."""
    if not is_local(uri):
        return
    path = _local(uri)
    with _guard("made", uri):
        try:
            _make_local(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(f"{path} cannot be a directory: there is a file in the way") from error


def check_directory(uri: str) -> None:
    """Raises BadInput when a local directory is not there and could not be made, or not be written
    to; makes nothing. Object stores are believed.
    """
    if not is_local(uri):
        return
    there = next(each for each in (_local(uri), *_local(uri).parents) if each.exists())
    if not there.is_dir():
        raise BadInput(f"{uri} cannot be a directory: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"{uri} cannot be written: no permission in {there}")


def is_pattern_over(pattern: str, uri: str) -> bool:
    """True when a glob would find a file of that name; False for what is no glob."""
    found = _MAGIC.search(pattern)
    if found is None:
        return False
    if "**" in pattern:
        return uri.startswith(f"{pattern[: found.start()].rpartition('/')[0]}/")
    return pattern.count("/") == uri.count("/") and fnmatch.fnmatchcase(uri, pattern)


def fixed_folder(pattern: str) -> str:
    """The folder of a glob that no wildcard is in; the pattern itself where it has none."""
    found = _MAGIC.search(pattern)
    return pattern if found is None else pattern[: found.start()].rpartition("/")[0]


def remove_directory(uri: str) -> None:
    """Removes an empty directory; one that is gone or still holds something is left as it is."""
    if not is_local(uri):
        return
    try:
        with suppress(FileNotFoundError):
            _local(uri).rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise StorageUnavailable(f"{uri} cannot be removed: {_reason(error)}") from error


def checksum(uri: str) -> str:
    """SHA-256 of a file in hexadecimal digits, read as a stream."""
    with open_input(uri, sequential=True) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# ---------------------------------------------------------------- names and errors


def _split(uri: str) -> tuple[str, str]:
    """Scheme ('' for local) and the rest; BadInput for a scheme that is not supported."""
    match = _SCHEME.match(uri)
    if match is None:
        return "", uri
    scheme, rest = match[1].lower(), uri[match.end() :]
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise BadInput(f"{uri}: a file:// uri names an absolute path, as in file:///data/x")
        return "", f"/{unquote(path)}"
    if scheme not in OBJECT_STORES or "::" in rest:
        raise BadInput(f"{uri}: {scheme}:// is not supported; use a local path, s3:// or gs://")
    return scheme, rest


def _local(uri: str) -> Path:
    return Path(_split(uri)[1])


_DRIVERS: dict[str, Any] = {}
_driver_lock = threading.Lock()


def _remote(uri: str) -> tuple[Any, str]:
    """The driver and its own name of the place; BadInput names the package that is missing."""
    scheme, rest = _split(uri)
    with _driver_lock:
        # Listings are never cached: other machines write to the same places.
        try:
            kind = fsspec.get_filesystem_class(scheme)
            if not isinstance(_DRIVERS.get(scheme), kind):
                with _guard("reached", uri):
                    _DRIVERS[scheme] = kind(use_listings_cache=False)
        except ImportError as error:
            package = str(known_implementations[scheme]["class"]).partition(".")[0]
            raise BadInput(
                f"{uri}: {scheme}:// needs the package {package}; run pip install {package}"
            ) from error
        fs = _DRIVERS[scheme]
    return fs, str(fs._strip_protocol(f"{scheme}://{rest}"))


def _driver_errors() -> tuple[type[BaseException], ...]:
    """What drivers raise: OSError, and the classes of those that go their own way, if loaded."""
    own = {
        "botocore.exceptions": ("BotoCoreError", "ClientError"),
        "aiohttp": ("ClientError",),
        "gcsfs.retry": ("HttpError",),
        "google.auth.exceptions": ("GoogleAuthError",),
        "azure.core.exceptions": ("AzureError",),
    }
    found: list[type[BaseException]] = [OSError]
    for module, names in own.items():
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names]
    return tuple(found)


@contextmanager
def _guard(done: str, uri: str, *, missing_is_outage: bool = False) -> Iterator[None]:
    """A driver's error becomes StorageUnavailable; a missing file stays FileNotFoundError."""
    try:
        yield
    except _driver_errors() as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not missing_is_outage:
            raise FileNotFoundError(errno.ENOENT, "no such file", uri) from error
        raise StorageUnavailable(f"{uri} cannot be {done}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class _RawFile(Protocol):
    """The part of a driver's open file that reading needs."""

    def readinto(self, buffer: Any, /) -> int | None: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class _Source(io.RawIOBase):
    """An open input whose errors are ours, whatever library reads it."""

    def __init__(self, raw: _RawFile, uri: str) -> None:
        self._raw, self._uri = raw, uri

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with _guard("read", self._uri):
            return self._raw.readinto(buffer) or 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with _guard("read", self._uri):
            return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
            super().close()


class _Sink(io.RawIOBase):
    """An open output that counts and hashes what passes."""

    def __init__(self, raw: Any, uri: str) -> None:
        self._raw, self._uri = raw, uri
        self._hash, self._bytes = hashlib.sha256(), 0
        self.given_up = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        total = len(left)
        if self.given_up:
            # A buffer that still holds bytes flushes them when it is collected.
            return total
        with _writing(self._uri):
            while left:
                left = left[self._raw.write(left) :]
        self._hash.update(data)
        self._bytes += total
        return total

    def written(self) -> Written:
        return Written(self._bytes, self._hash.hexdigest())


# ---------------------------------------------------------------- listing


def _expand_one(uri: str) -> list[FileInfo]:
    try:
        files = list(_expand_local(uri) if is_local(uri) else _expand_remote(uri))
    except FileNotFoundError as error:
        missing = getattr(error, "filename", None) or uri
        raise BadInput(f"{missing}: there is no such file or directory") from error
    except StorageUnavailable as error:
        if isinstance(error.__cause__, PermissionError):
            raise BadInput(
                f"{str(error).split(' cannot be ')[0]}: no permission to read"
            ) from error
        raise
    if not files:
        what = "the pattern matches no file" if _MAGIC.search(uri) else "the directory has no files"
        raise BadInput(f"{uri}: {what} (names that start with _ or . do not count)")
    return files


def _expand_local(uri: str) -> Iterator[FileInfo]:
    path = Path(uri)
    matches = [path]
    if _MAGIC.search(uri) and not path.exists():
        with _guard("listed", uri):
            # A `**` reaches a file by more than one way; it is still one file.
            matches = list(dict.fromkeys(_glob(Path(path.anchor), path.parts[1:])))
    files: dict[Path, None] = {}
    for match in matches:
        with _guard("listed", str(match)):
            files.update(dict.fromkeys(_walk(match) if match.is_dir() else [match]))
    for file in files:
        with _guard("read", str(file)):
            yield _local_info(file)
            with file.open("rb"):
                pass


def _walk(root: Path) -> Iterator[Path]:
    """Every file below a directory; an unreadable folder is an error, never just left out."""
    for folder, names, files in os.walk(root, followlinks=True, onerror=_raise):
        names[:] = [name for name in names if not _hidden(name)]
        yield from (Path(folder, name) for name in files if not _hidden(name))


def _glob(at: Path, steps: tuple[str, ...]) -> Iterator[Path]:
    """What a pattern matches below `at`; unlike the standard one it does not hide errors."""
    if not steps:
        yield at
        return
    step, rest = steps[0], steps[1:]
    if not _MAGIC.search(step):
        if (at / step).exists():
            yield from _glob(at / step, rest)
        return
    if step == "**":
        yield from _glob(at, rest)
    if not at.is_dir():
        return
    for child in sorted(at.iterdir()):
        if _hidden(child.name) and not _hidden(step):
            continue
        if step == "**":
            if child.is_dir():
                yield from _glob(child, steps)
            elif not rest:
                yield child
        elif fnmatch.fnmatchcase(child.name, step):
            yield from _glob(child, rest)


def _expand_remote(uri: str) -> Iterator[FileInfo]:
    fs, root = _remote(uri)
    scheme = _split(uri)[0]
    with _guard("listed", uri):
        if _MAGIC.search(root) and not fs.exists(root):
            found: dict[str, Any] = {}
            for name, info in fs.glob(root, detail=True).items():
                found |= fs.find(name, detail=True) if info["type"] == "directory" else {name: info}
            literal = _MAGIC.split(root)[0].rpartition("/")[0]
            asked_for_hidden = any(map(_hidden, root.removeprefix(literal).strip("/").split("/")))
            root = literal
        else:
            info = fs.info(root)
            if info["type"] != "directory":
                yield _remote_info(uri, info)
                return
            found, asked_for_hidden = fs.find(root, detail=True), False
    for name, info in sorted(found.items()):
        below = name.removeprefix(root).strip("/").split("/")
        skipped = any(map(_hidden, below)) and not asked_for_hidden
        if info["type"] == "file" and not name.endswith("/") and not skipped:
            yield _remote_info(f"{scheme}://{name.lstrip('/')}", info)


def _hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _raise(error: OSError) -> None:
    raise error


def _local_info(path: Path) -> FileInfo:
    facts = path.stat()
    if modes.S_ISDIR(facts.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if not modes.S_ISREG(facts.st_mode):
        raise BadInput(f"{path} is no regular file: copy its content into one")
    return FileInfo(str(path), facts.st_size, str(facts.st_mtime_ns))


def _remote_info(uri: str, info: dict[str, Any]) -> FileInfo:
    return FileInfo(uri, int(info["size"]), _fingerprint(info))


def _fingerprint(info: dict[str, Any]) -> str:
    """Drivers name the etag and the modification time as their stores do."""
    for name in ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            return str(since // timedelta(microseconds=1) * 1000)
        if isinstance(value, float):
            # The same time as above where a listing has seconds; both are exact to a microsecond.
            return str(round(value * 1e6) * 1000)
        if value:
            return str(value).strip('"')
    return ""


# ---------------------------------------------------------------- writing


def _write_local(path: Path, write: Callable[[BinaryIO], object], replace: bool) -> Written:
    uri = str(path)
    with _writing(uri):
        in_the_way = path.exists() and not path.is_file()
    if in_the_way:
        # A failed write removes what it wrote, and a replacing one renames over it: a device, a
        # pipe or a directory must never get that far.
        raise BadInput(f"{uri} is no regular file and cannot be written: name another")
    make_directory(str(path.parent))
    place = path.with_name(f".{path.name}.{os.urandom(6).hex()}") if replace else path
    with _writing(uri):
        raw = place.open("wb", buffering=0)
    try:
        with raw:
            written = _fill(raw, uri, write)
            with _writing(uri):
                os.fsync(raw.fileno())
        with _writing(uri):
            if replace:
                place.replace(path)
            _sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            place.unlink()
        raise
    return written


def _write_remote(uri: str, write: Callable[[BinaryIO], object]) -> Written:
    """Spooled first: drivers finish an upload when a file is closed, also by an exception."""
    fs, path = _remote(uri)
    with _writing(uri):
        spool = tempfile.NamedTemporaryFile(prefix="nightshift-", buffering=0)  # noqa: SIM115
    with spool:
        written = _fill(spool, uri, write)
        with _writing(uri):
            fs.put_file(spool.name, path, **_uploading(uri, written.bytes))
    return written


def _uploading(uri: str, size_bytes: int) -> dict[str, int]:
    """How large the pieces of an upload are, for drivers that can be told: the default of S3's keeps
    half a gigabyte in memory. A store takes 10,000 pieces at most.
    """
    if _split(uri)[0] not in ("s3", "gs"):
        return {}
    return {"chunksize": max(UPLOAD_PIECE_BYTES, -(-size_bytes // 9000))}


def _writing(uri: str) -> AbstractContextManager[None]:
    """Around each of our own calls, not around the caller's `write`, whose errors are its own."""
    return _guard("written", uri, missing_is_outage=True)


def _fill(raw: Any, uri: str, write: Callable[[BinaryIO], object]) -> Written:
    sink = _Sink(raw, uri)
    try:
        buffered = io.BufferedWriter(sink, 1024 * 1024)
        write(buffered)
        reached(Moment.WRITING)
        # pyarrow may have closed it, which flushed it.
        if not buffered.closed:
            buffered.flush()
    except BaseException:
        sink.given_up = True
        raise
    return sink.written()


def _make_local(path: Path) -> None:
    """Makes missing parents too and syncs every directory that got a new name in it."""
    missing = []
    at = path
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    if not missing:
        return
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync_now(made.parent)


def _sync_directory(path: Path) -> None:
    """Now, or at the end of this thread's `gathered_syncs`."""
    gathered = _gathered()
    if gathered is None:
        _sync_now(path)
    else:
        gathered[path] = None


def _sync_now(path: Path) -> None:
    """One sync serves every thread that asked for it before it began."""
    _syncs_of(path).ask(None)


def _gathered() -> dict[Path, None] | None:
    found: dict[Path, None] | None = getattr(_of_thread, "gathered", None)
    return found


@lru_cache(maxsize=256)
def _syncs_of(path: Path) -> Grouped[None, Literal[True]]:
    """One for each directory: a mount that hangs stops only its own files.

    After an eviction there may be two for one directory, each of which syncs for those it has.
    """
    return Grouped(partial(_synced, path), most=1024)


def _synced(path: Path, wishes: Sequence[None]) -> list[Literal[True]]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return [True] * len(wishes)


# ---------------------------------------------------------------- moving


def _move(source: str, target: str) -> None:
    if is_local(source) != is_local(target):
        raise ValueError("a file moves within one store")
    if exists(target):
        _finish_move(source, target)
        return
    with _guard("moved", source):
        if not is_local(source):
            fs, path = _remote(source)
            fs.cp_file(path, _remote(target)[1])
        else:
            before, after = _local(source), _local(target)
            _make_local(after.parent)
            before.rename(after)
            for folder in {after.parent, before.parent}:
                _sync_directory(folder)
    if not is_local(source):
        delete(source)


def _finish_move(source: str, target: str) -> None:
    """Both exist: a copy whose delete did not happen, or two files that must not be mixed up."""
    if stat(source).size != stat(target).size or checksum(source) != checksum(target):
        raise Permanent(f"{source} cannot be moved: {target} holds something else")
    delete(source)
