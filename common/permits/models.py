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
            f"the model {model!r} is none of those that NIGHTSHIFT_ALLOWED_MODELS names: "
            f"{', '.join(allowed)}"
        )


def check(model: str, allowed: Sequence[str], roots: Sequence[str]) -> None:
    """BadInput for a model that no pattern in `allowed` names, and for a folder, or an address in a
    store, outside all of `roots`. Empty lists allow all.

    A pattern that begins with / is the operator's word for folders outside the roots, too.
    """
    is_address = "://" in model
    if not is_address and not _is_folder(model):
        check_name(model, allowed)
        return
    place = model if is_address else str(Path(model).expanduser().resolve())
    folders = [_real(pattern) for pattern in allowed if pattern.startswith("/")]
    if not is_address and folders and is_allowed(place, folders):
        return
    check_name(place, allowed)
    if roots:
        storage.check_roots([storage.resolve(place)], roots)


def _is_folder(model: str) -> bool:
    """Whether the libraries would read the model from this machine's disk."""
    # Path.exists raises for a name that is too long for a file.
    return model.startswith(("/", "./", "../", "~")) or os.path.exists(model)  # noqa: PTH110


def _real(pattern: str) -> str:
    """The pattern with the links of its folder followed, as they are in the path of a model."""
    fixed = storage.fixed_folder(pattern)
    return glob.escape(str(Path(fixed or "/").resolve())).rstrip("/") + pattern[len(fixed) :]
