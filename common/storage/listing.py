"""Listings: the files that an input names, by walking directories and globs, and names in a folder."""

import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.storage import local, objects, places
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


def expand(uris: Iterable[str]) -> list[FileInfo]:
    """The files that `uris` name (files, directories, globs), sorted by uri over the whole list.

    Directories are walked to the bottom. Names that start with `_` or `.` are skipped in
    directories and where a wildcard would match them. Raises BadInput for what is missing, unreadable, empty or
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


def list_names(uri: str) -> list[str]:
    """Names of all files and folders directly in a directory, hidden ones too, sorted.

    Empty when the directory does not exist. Raises BadInput for a file, and for a link in place of
    a folder of ours.
    """
    with suppress(FileNotFoundError), guard("listed", uri):
        if is_local(uri):
            if local_path(uri).is_file():
                raise BadInput(f"{uri} is a file, not a directory")
            return sorted(places.names(local_path(uri)))
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
            for folder, _, files in os.walk(local_path(uri), onerror=_raise_outage):
                yield folder, files
            return
        fs, path = driver_of(uri)
        for folder, _, files in fs.walk(path, detail=False, on_error=_raise_outage):
            yield f"{split(uri)[0]}://{str(folder).strip('/')}", files


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
        what = (
            "the pattern matches no file" if WILDCARD.search(uri) else "the directory has no files"
        )
        raise BadInput(f"{uri}: {what} (names that start with _ or . do not count)")
    return files


def _expand_local(uri: str) -> Iterator[FileInfo]:
    path = Path(uri)
    matches = [path]
    if WILDCARD.search(uri) and not path.exists():
        with guard("listed", uri):
            # A `**` may reach the same file by several ways.
            matches = list(dict.fromkeys(_glob(Path(path.anchor), path.parts[1:])))
    files: dict[Path, None] = {}
    for match in matches:
        with guard("listed", str(match)):
            files.update(dict.fromkeys(_walk(match) if match.is_dir() else [match]))
    for file in files:
        info = local.info(file)
        with guard("read", str(file)), file.open("rb"):
            yield info


def _walk(root: Path) -> Iterator[Path]:
    """Every file below a directory; a folder that cannot be read is an error."""
    for folder, names, files in os.walk(root, followlinks=True, onerror=_raise):
        names[:] = [name for name in names if not _hidden(name)]
        yield from (Path(folder, name) for name in files if not _hidden(name))


def _glob(at: Path, steps: tuple[str, ...]) -> Iterator[Path]:
    """What a pattern matches below `at`; unlike the standard glob, errors are raised."""
    if not steps:
        yield at
        return
    step, rest = steps[0], steps[1:]
    if not WILDCARD.search(step):
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


def _raise(error: OSError) -> None:
    raise error


def _raise_outage(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        raise error
