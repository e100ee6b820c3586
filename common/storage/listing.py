"""Listings: the files that an input names, by walking directories and globs, and names in a folder."""

import errno
import fnmatch
import os
import stat as modes
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.public_text import marked, private
from nightshift.common.storage import (
    links as places,
)
from nightshift.common.storage import (
    local,
    objects,
    walls,
)
from nightshift.common.storage.addresses import (
    WILDCARD,
    check_name,
    fixed_folder,
    is_local,
    local_path,
    resolve,
    split,
)
from nightshift.common.storage.driver_errors import guard
from nightshift.common.storage.objects import driver_of
from nightshift.common.storage.streams import FileInfo
from nightshift.common.text import first_few

FileKey = tuple[walls.Identity, str] | str
"""What tells a file from all others: the folder that holds it and its name there, links followed; the uri
of an object.
"""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of an input, sorted by uri, each once. `again` has the other paths by which links lead to
    one of them, or to a folder of them, each with the path that counts.
    """

    files: list[FileInfo]
    again: dict[str, str]
    _known: dict[FileKey, str] = field(default_factory=dict, repr=False)

    @property
    def remark(self) -> str | None:
        """A sentence with the files that count once although links lead to them twice; None without such files."""
        if not self.again:
            return None
        said = [f"{other} is {counted}" for other, counted in sorted(self.again.items())]
        return f"links lead to the same files twice, and they count once: {first_few(said, 3)}"

    def as_planned(self, planned: Collection[str]) -> list[FileInfo]:
        """The files, with the names by which a job has planned them. A job may have planned a file by several
        paths, or by another path than that of the listing.
        """
        listed = {info.uri: info for info in self.files}
        for uri in planned:
            if uri in listed or not is_local(uri):
                continue
            with suppress(FileNotFoundError, BadInput, StorageUnavailable):
                found = _candidate(local_path(uri))
                counted = self._known.get(found.key)
                if counted is None:
                    continue
                listed[uri] = found.info
                if counted not in planned:
                    listed.pop(counted, None)
        return [listed[uri] for uri in sorted(listed)]


def listing(uris: Iterable[str]) -> Listing:
    """The files that `uris` name (files, directories, globs).

    Directories are walked to the bottom, each once, however many links lead there; what is reached
    without a link counts under that path. Hard links are files of their own. Names that start with `_` or
    `.` are skipped in directories and where a wildcard would match them. Raises BadInput for what is
    missing, unreadable, empty or named twice by the same path, and for a link that leads out of the roots
    around the input; StorageUnavailable when the store does not answer.
    """
    files: dict[str, FileInfo] = {}
    named: dict[FileKey, list[_Candidate]] = {}
    again: dict[str, str] = {}
    for uri in uris:
        for each in _expand_one(resolve(uri), again):
            check_name(each.info.uri)
            if each.info.uri in files:
                raise BadInput(
                    f"{private(each.info.uri)} is named twice by the input: its rows would count twice, name "
                    "it once"
                )
            files[each.info.uri] = each.info
            named.setdefault(each.key, []).append(each)
    known: dict[FileKey, str] = {}
    for key, candidates in named.items():
        counted, *others = sorted(candidates, key=lambda each: (each.links, each.info.uri))
        known[key] = counted.info.uri
        for other in others:
            del files[other.info.uri]
            again[other.info.uri] = counted.info.uri
    return Listing([files[uri] for uri in sorted(files)], again, known)


def expand(uris: Iterable[str]) -> list[FileInfo]:
    """The files of `listing` alone."""
    return listing(uris).files


def list_names(uri: str) -> list[str]:
    """Names of all files and folders directly in a directory, hidden ones too, sorted.

    Empty when the directory does not exist. Raises BadInput for a file, and for a link in place of
    a folder of ours.
    """
    with suppress(FileNotFoundError), guard("listed", uri):
        if is_local(uri):
            try:
                return sorted(places.names(local_path(uri)))
            except NotADirectoryError as error:
                local.info(local_path(uri))
                raise BadInput(f"{private(uri)} is a file, not a directory") from error
        fs, path = driver_of(uri)
        names = {str(name).rstrip("/") for name in fs.ls(path, detail=False)}
        # Some stores keep an empty object in place of the directory itself.
        return sorted(name.rpartition("/")[2] for name in names - {path.rstrip("/")})
    return []


def folders(uri: str) -> Iterator[tuple[str, Sequence[str]]]:
    """A directory and all folders below it, each with the names of its files, hidden ones too.

    Links are not followed. A folder that cannot be read is left out; a missing one has no files.
    """
    with guard("listed", uri):
        if is_local(uri):
            with ExitStack() as stack:
                try:
                    top = stack.enter_context(places.opened(local_path(uri)))
                except OSError as error:
                    _raise_outage(error)
                    return
                for folder, _, files, _ in os.fwalk(".", dir_fd=top, onerror=_raise_outage):
                    yield str(Path(local_path(uri), folder)), files
            return
        fs, path = driver_of(uri)
        for folder, _, files in fs.walk(path, detail=False, on_error=_raise_outage):
            yield f"{split(uri)[0]}://{str(folder).strip('/')}", files


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file by one of its paths; `links` are those on the way."""

    info: FileInfo
    key: FileKey
    links: int


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory that a walk has come to: its path, and the names in it that are not hidden, of files,
    of folders, and of links to folders.
    """

    path: Path
    files: list[str]
    folders: list[str]
    linked: list[str]


def _expand_one(uri: str, again: dict[str, str]) -> list[_Candidate]:
    try:
        if is_local(uri):
            files = list(_expand_local(uri, again))
        else:
            files = [_Candidate(info, info.uri, 0) for info in _expand_remote(uri)]
    except FileNotFoundError as error:
        missing = getattr(error, "filename", None) or uri
        raise BadInput(f"{private(missing)}: there is no such file or directory") from error
    except StorageUnavailable as error:
        if isinstance(error.__cause__, PermissionError):
            raise BadInput(
                f"{marked(error).split(' cannot be ')[0]}: no permission to read"
            ) from error
        raise
    if not files:
        what = (
            "the pattern matches no file" if WILDCARD.search(uri) else "the directory has no files"
        )
        raise BadInput(f"{private(uri)}: {what} (names that start with _ or . do not count)")
    return files


def _expand_local(uri: str, again: dict[str, str]) -> Iterator[_Candidate]:
    path = Path(uri)
    matches = [path]
    if WILDCARD.search(uri) and _kind(path) is None:
        with guard("listed", uri):
            # What lies around the fixed folder is not looked at: it may be outside of a wall.
            fixed = Path(fixed_folder(uri) or path.anchor)
            steps = path.parts[len(fixed.parts) :]
            found = _glob(fixed, steps, again) if _kind(fixed) is not None else ()
            # A `**` may reach the same file by several ways.
            matches = list(dict.fromkeys(found))
    tops, files = list[Path](), dict[Path, None]()
    for match in matches:
        if _kind(match) == modes.S_IFDIR:
            tops.append(match)
        else:
            files[match] = None
    with guard("listed", uri):
        for folder in _folders(tops, again):
            files.update((folder.path / name, None) for name in folder.files)
    for file in files:
        yield _candidate(file)


def _candidate(path: Path) -> _Candidate:
    """A file that is there and can be read; BadInput and StorageUnavailable as `local.info`."""
    info = local.info(path)
    with guard("read", str(path)), local.open_file(path):
        pass
    with guard("read", str(path)):
        found = walls.walk(path)
        try:
            folder = walls.identity(os.fstat(found.folder))
        finally:
            os.close(found.folder)
    return _Candidate(info, (folder, found.name), found.links)


def _folders(tops: Iterable[Path], again: dict[str, str]) -> Iterator[_Folder]:
    """These directories and all below them, each once, by device and inode: those that are reached
    without a link first. A folder that cannot be read is an error.
    """
    seen: dict[walls.Identity, Path] = {}
    waiting: dict[int, list[Path]] = {}
    for top in tops:
        waiting.setdefault(_links(top), []).append(top)
    while waiting:
        links = min(waiting)
        ways = sorted(waiting.pop(links), reverse=True)
        while ways:
            path = ways.pop()
            with guard("listed", str(path)), places.opened(path) as opened:
                here = walls.identity(os.fstat(opened))
                if here in seen:
                    if path != seen[here]:
                        again[str(path)] = str(seen[here])
                    continue
                seen[here] = path
                folder = _content(path, opened)
            ways.extend(path / name for name in reversed(folder.folders))
            if folder.linked:
                waiting.setdefault(links + 1, []).extend(path / name for name in folder.linked)
            yield folder


def _content(path: Path, opened: int) -> _Folder:
    content = _Folder(path, [], [], [])
    with os.scandir(opened) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if _hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                content.folders.append(entry.name)
            elif entry.is_symlink() and _kind(path / entry.name) == modes.S_IFDIR:
                content.linked.append(entry.name)
            else:
                content.files.append(entry.name)
    return content


def _links(path: Path) -> int:
    found = walls.walk(path)
    os.close(found.folder)
    return found.links


def _kind(path: Path) -> int | None:
    """What a path leads to, as S_IFMT has it; None where there is nothing, as behind a link to itself."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError), places.placed(path) as place:
            return modes.S_IFMT(place.stat().st_mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return None


def _glob(at: Path, steps: tuple[str, ...], again: dict[str, str]) -> Iterator[Path]:
    """What a pattern matches below `at`; unlike the standard glob, errors are raised."""
    if not steps:
        yield at
        return
    step, rest = steps[0], steps[1:]
    if not WILDCARD.search(step):
        if _kind(at / step) is not None:
            yield from _glob(at / step, rest, again)
        return
    if _kind(at) != modes.S_IFDIR:
        if step == "**":
            yield from _glob(at, rest, again)
        return
    if step == "**":
        if rest:
            for folder in _folders([at], again):
                yield from _glob(folder.path, rest, again)
        else:
            yield at
        return
    for name in sorted(places.names(at)):
        if not (_hidden(name) and not _hidden(step)) and fnmatch.fnmatchcase(name, step):
            yield from _glob(at / name, rest, again)


def _expand_remote(uri: str) -> Iterator[FileInfo]:
    fs, root = driver_of(uri)
    scheme = split(uri)[0]
    with guard("listed", uri):
        if WILDCARD.search(root) and not fs.exists(root):
            found: dict[str, Any] = {}
            for name, info in fs.glob(root, detail=True).items():
                found |= fs.find(name, detail=True) if info["type"] == "directory" else {name: info}
            literal = fixed_folder(root)
            asked_for_hidden = any(map(_hidden, root.removeprefix(literal).strip("/").split("/")))
            root = literal
        else:
            info = fs.info(root)
            if info["type"] != "directory":
                yield objects.file_info(uri, info)
                return
            found, asked_for_hidden = fs.find(root, detail=True), False
    for name, info in sorted(found.items()):
        below = name.removeprefix(root).strip("/").split("/")
        skipped = any(map(_hidden, below)) and not asked_for_hidden
        if info["type"] == "file" and not name.endswith("/") and not skipped:
            yield objects.file_info(f"{scheme}://{name.lstrip('/')}", info)


def _hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _raise_outage(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        raise error
