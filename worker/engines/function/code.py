"""Which files a function is made of: what it had imported below its own folder once it was loaded."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

MOST_FILES = 200
"""Files of a function of which the ledger keeps a digest, the first by name."""


def digests(files: Iterable[str], folders: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each of these files that lies below one of the folders, by its path there; without
    what is installed in a virtual environment below a folder, and our own host of the function.
    """
    found: dict[str, str] = {}
    aside = [
        Path(sys.prefix).resolve(),
        Path(sys.base_prefix).resolve(),
        Path(__file__).resolve().parent,
    ]
    tops = [Path(folder).resolve() for folder in folders]
    for file in (Path(each).resolve() for each in set(files)):
        top = next((each for each in tops if file.is_relative_to(each)), None)
        if top is None:
            continue
        # A folder may itself lie below the interpreter's, as /usr/src/app does.
        if any(each.is_relative_to(top) and file.is_relative_to(each) for each in aside):
            continue
        with suppress(OSError):
            name = file.relative_to(top).as_posix()
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return dict(sorted(found.items())[:MOST_FILES])
