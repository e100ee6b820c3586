"""The folder of temporary files of one sort, or of the copies that a plan without a job reads."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightshift.common.errors import StorageUnavailable
from nightshift.common.own_folder import own_folder
from nightshift.common.system_errors import told

PREFIX = "nightshift-sort-"

COPIES = "nightshift-copies-"
"""Begins the names of folders with copies of an input that an estimate or a preview reads."""


@contextmanager
def spill_folder() -> Iterator[Path]:
    """A folder below that of temporary files (`TMPDIR`), gone afterwards. A file that cannot be written
    there is StorageUnavailable: the disk is full, as a rule.
    """
    try:
        with own_folder(PREFIX) as folder:
            yield folder
    except FileNotFoundError:
        raise  # of a file of the input: what it means is said elsewhere
    except OSError as error:
        raise StorageUnavailable(
            f"the rows cannot be sorted in {tempfile.gettempdir()}, the folder of temporary files "
            f"(TMPDIR): {told(error)}"
        ) from error


@contextmanager
def copies_folder() -> Iterator[str]:
    """A folder for copies of an input that no job reads, gone afterwards."""
    with own_folder(COPIES) as folder:
        yield str(folder)
