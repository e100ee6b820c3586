"""A file as storage sees it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it is now: `size` in bytes; `fingerprint` is the etag, else the mtime in ns."""

    uri: str
    size: int
    fingerprint: str
