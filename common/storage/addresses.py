"""Addresses of files: local paths and scheme://…, which of them are allowed, and what a glob covers."""

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

from nightshift.common.errors import BadInput
from nightshift.common.public_text import private, public
from nightshift.common.text import escaped, has_half_characters

OBJECT_STORES = ("s3", "gs", "abfs", "memory")
"""Schemes that work when their driver is installed; `memory` lives in one process, for tests."""

SETTING = "NIGHTSHIFT_ALLOWED_ROOTS names"
"""Who names the roots of a process."""

_ALIASES = {"s3a": "s3", "gcs": "gs", "az": "abfs"}

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")

WILDCARD = re.compile(r"[*?\[]")
"""Makes a pattern of a path."""


def resolve(uri: str) -> str:
    """The address in its one form: an absolute local path, or scheme://… without a trailing slash.

    Raises BadInput for a scheme that is not supported, and for a name that the ledger cannot keep.
    """
    check_name(uri)
    scheme, rest = split(uri)
    if not scheme:
        check_name(rest)
        # abspath, not resolve(): a link may point elsewhere on the worker's machine.
        return os.path.abspath(rest)  # noqa: PTH100
    if {".", ".."} & set(rest.split("/")):
        # A store takes dots as letters, but a gateway before the store may resolve them.
        raise BadInput(f"{private(uri)}: the name of an object has no . or .. between its slashes")
    return f"{scheme}://{rest.strip('/')}"


def check_name(uri: str) -> None:
    """BadInput for a name that is no UTF-8 or holds a NUL: the ledger could not keep it."""
    if has_half_characters(uri):
        raise BadInput(f"the name {private(escaped(uri))} is no UTF-8: rename the file or folder")
    if "\x00" in uri:
        raise BadInput(f"the name {private(uri)} holds a NUL character")


def check_roots(uris: Iterable[str], roots: Sequence[str], said: str = SETTING) -> None:
    """BadInput for a uri outside all of `roots`, which `said` calls so; without roots every uri is allowed.

    Links are followed as they are on this machine.
    """
    check_held(uris, roots or None, said)


def check_held(uris: Iterable[str], roots: Sequence[str] | None, said: str) -> None:
    """What `check_roots` does, but that None allows every uri and no root allows none."""
    if roots is None:
        return
    allowed = [resolve(root) for root in roots]
    real = [_real(root) for root in allowed]
    for uri in uris:
        inside = _is_below(uri, allowed) and _is_below(_real(uri), real)
        if not inside:
            raise outside(uri, allowed, said)


def outside(place: object, roots: Sequence[str], said: str) -> BadInput:
    """The error for a place outside all of `roots`. The roots of the setting are not listed: tenants
    read the message, and one of the roots may be the folder of another tenant.
    """
    listed = "" if said == SETTING else f": {', '.join(map(private, roots))}"
    return BadInput(f"{private(place)} is outside the folders that {said}{listed}")


def _real(uri: str) -> str:
    return str(local_path(uri).resolve()) if is_local(uri) else uri


def _is_below(uri: str, roots: Sequence[str]) -> bool:
    bare = [root.rstrip("/") for root in roots]
    return any(uri == root or uri.startswith(f"{root}/") for root in bare)


def enclosing(uri: str) -> list[str]:
    """Every folder around a file or folder: as it is named, and as links lead on this machine."""
    if is_local(uri):
        path = local_path(uri)
        return [str(each) for each in dict.fromkeys((*path.parents, *path.resolve().parents))]
    scheme, rest = split(uri)
    steps = rest.split("/")
    return [f"{scheme}://{'/'.join(steps[:count])}" for count in range(len(steps) - 1, 0, -1)]


def as_typed(uri: str) -> str:
    """The address as somebody in this folder would type it: relative where it lies below."""
    here = f"{Path.cwd()}/"
    return uri.removeprefix(here) if is_local(uri) else uri


def is_local(uri: str) -> bool:
    """True for a path on this machine's file system."""
    return not split(uri)[0]


def is_pattern_over(pattern: str, uri: str) -> bool:
    """True when `pattern` is a glob that would find the file `uri`."""
    if not WILDCARD.search(pattern):
        return False
    if "**" in pattern:
        return uri.startswith(f"{fixed_folder(pattern)}/")
    return pattern.count("/") == uri.count("/") and fnmatch.fnmatchcase(uri, pattern)


def fixed_folder(pattern: str) -> str:
    """The folder of a glob up to its first wildcard; the pattern itself where it has no wildcard."""
    found = WILDCARD.search(pattern)
    return pattern if found is None else pattern[: found.start()].rpartition("/")[0]


def split(uri: str) -> tuple[str, str]:
    """Scheme ('' for local) and the rest; BadInput for a scheme that is not supported."""
    match = _SCHEME.match(uri)
    if match is None:
        return "", uri
    scheme, rest = match[1].lower(), uri[match.end() :]
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise BadInput(
                f"{private(uri)}: a file:// uri names an absolute path, as in {public('file:///data/x')}"
            )
        return "", f"/{unquote(path)}"
    if scheme not in OBJECT_STORES or "::" in rest:
        raise BadInput(
            f"{private(uri)}: {scheme}:// is not supported; use a local path, s3:// or gs://"
        )
    return scheme, rest


def local_path(uri: str) -> Path:
    """The path of a local address."""
    return Path(split(uri)[1])
