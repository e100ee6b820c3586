"""Which models a worker may load: names of a hub by pattern, folders below the allowed ones."""

import glob
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from nightshift.common import storage
from nightshift.common.errors import BadInput


def is_allowed(model: str, allowed: Sequence[str]) -> bool:
    """Whether a model's name matches one of the patterns; without patterns all are allowed."""
    return not allowed or any(fnmatchcase(model, pattern) for pattern in allowed)


def check_name(model: str, allowed: Sequence[str]) -> None:
    """BadInput for a model that none of the patterns names; without patterns all are allowed."""
    if not is_allowed(model, allowed):
        raise BadInput(
            f"the model {model!r} is not one of those that NIGHTSHIFT_ALLOWED_MODELS names: "
            f"{', '.join(allowed)}"
        )


def check(model: str, allowed: Sequence[str], roots: Sequence[str]) -> None:
    """BadInput for a model that no pattern in `allowed` names, and for a folder, or an address in a
    store, outside all of `roots`. Empty lists allow all.

    A pattern that begins with / is the operator's word for folders outside the roots, too.
    """
    place = placed(model)
    is_folder = place.startswith("/")
    folders = [real(pattern) for pattern in allowed if pattern.startswith("/")]
    if is_folder and folders and is_allowed(place, folders):
        return
    check_name(place, allowed)
    if roots and (is_folder or "://" in place):
        storage.check_roots([storage.resolve(place)], roots)


def check_revision(revision: str | None) -> None:
    """BadInput for a revision that a hub's cache on disk would take for a path out of the cache."""
    if revision is not None and (revision.startswith("/") or ".." in revision.split("/")):
        raise BadInput(f"the revision {revision!r} is a path: name a branch, a tag or a commit")


def placed(model: str) -> str:
    """Where a model is: a folder of this machine as its absolute path without links, the name of a
    hub's model and an address in a store as they are.
    """
    if "://" in model or not _is_folder(model):
        return model
    return str(Path(model).expanduser().resolve())


def _is_folder(model: str) -> bool:
    """Whether the libraries would read the model from this machine's disk."""
    # Path.exists raises for a name that is too long for a file.
    return model.startswith(("/", "./", "../", "~")) or os.path.exists(model)  # noqa: PTH110


def real(pattern: str) -> str:
    """A pattern of folders with the links of its fixed part followed, as they are in `placed`."""
    fixed = storage.fixed_folder(pattern)
    return glob.escape(str(Path(fixed or "/").resolve())).rstrip("/") + pattern[len(fixed) :]
