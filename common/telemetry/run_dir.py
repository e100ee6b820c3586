"""The one setting that is read apart from the others: a probe runs every ten seconds, and pydantic
alone would cost it half a second of CPU each time.
"""

import os
from pathlib import Path

VARIABLE = "NIGHTSHIFT_RUN_DIR"

EXIT_NO_RUN_DIR = 2
"""Exit code of a probe that cannot look: the setting is wrong, the process may be well."""


class NoRunDir(Exception):
    """There is no folder to look into."""


def given() -> Path | None:
    """What Settings.run_dir is in this environment; None when it is not set."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def usable() -> Path:
    """The folder that a probe looks into; NoRunDir says in a sentence why there is none."""
    folder = given()
    if folder is None:
        raise NoRunDir(f"{VARIABLE} is not set: there is nothing to look at")
    try:
        os.listdir(folder)  # noqa: PTH208 - the answer does not matter, being allowed to ask does
    except OSError as error:
        raise NoRunDir(f"{VARIABLE}: {folder} cannot be read: {error.strerror}") from error
    return folder
