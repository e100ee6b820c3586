"""Errors of storage drivers, told by their type: an outage, or a file that is not there."""

import errno
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from nightshift.common.errors import StorageUnavailable
from nightshift.common.public_text import marked, private
from nightshift.common.system_errors import told


@contextmanager
def guard(done: str, uri: str, *, missing_is_outage: bool = False) -> Iterator[None]:
    """A driver's error becomes StorageUnavailable; a missing file stays FileNotFoundError."""
    try:
        yield
    except _driver_errors() as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not missing_is_outage:
            raise FileNotFoundError(errno.ENOENT, "no such file", uri) from error
        raise StorageUnavailable(f"{private(uri)} cannot be {done}: {reason(error)}") from error


def writing(uri: str) -> AbstractContextManager[None]:
    """Guards our own calls that write; the caller's `content` runs outside, and keeps its errors."""
    return guard("written", uri, missing_is_outage=True)


def reason(error: BaseException) -> str:
    """What went wrong, in words of ours or of the driver, for the message of another error."""
    return marked(told(error))


def _driver_errors() -> tuple[type[BaseException], ...]:
    """OSError, and the error classes of loaded drivers that do not derive from it."""
    own = {
        "botocore.exceptions": ("BotoCoreError", "ClientError"),
        "aiohttp": ("ClientError",),
        "gcsfs.retry": ("HttpError",),
        "google.auth.exceptions": ("GoogleAuthError",),
        "azure.core.exceptions": ("AzureError",),
    }
    found: list[type[BaseException]] = [OSError]
    for module, names in own.items():
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names]
    return tuple(found)
