"""Unfinished files: the hidden names under which local files are written before they get their own, and
which of them a process has left that was killed.

Who writes holds the file locked, so that nobody takes what is being written for something that was left.
"""

import fcntl
import os
import re
import stat as modes
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.storage.links import Place

NAME = re.compile(r"\.(.+?)(\.job\d+)?\.[0-9a-f]{12}")
"""As `Place.beside` makes them: the name that the file will get, and the job that it is of, if it is about one."""

SPOOL = "nightshift-spool-"
"""Begins the names of files in the folder of temporary files whose content goes to an object store."""


def final_name(name: str) -> str | None:
    """What an unfinished file will be called; None for any other name."""
    found = NAME.fullmatch(name)
    return None if found is None else found[1]


def has_job(name: str) -> bool:
    """Return True for an unfinished file that carries the number of a job."""
    found = NAME.fullmatch(name)
    return found is not None and found[2] is not None


def hold(descriptor: int) -> None:
    """Says until the file is closed that somebody writes it. Where the file system has no locks, nobody
    removes what a killed process has left.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_left(place: Place) -> bool:
    """Whether nobody writes the file any more; False where that cannot be told."""
    try:
        descriptor = place.opener(links=False)(place.name, os.O_RDONLY)
    except (OSError, BadInput):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return modes.S_ISREG(os.fstat(descriptor).st_mode)  # and no folder
    except OSError:
        return False
    finally:
        os.close(descriptor)


@cache
def remove_left_spools() -> None:
    """Removes spools of killed processes from the folder of temporary files, once a process."""
    for spool in Path(tempfile.gettempdir()).glob(f"{SPOOL}*"):
        if is_left(Place(str(spool))):
            with suppress(OSError):
                spool.unlink()
