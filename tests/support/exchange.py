"""Two names of the file system change places, without a moment in which one of them is free."""

import ctypes
import os
from pathlib import Path

RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Two names change places in one step of the file system."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, bytes(one), -100, bytes(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
