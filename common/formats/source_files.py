"""Files of the input: which format a file has by its declaration, its name and its first bytes, and
whether it is still the file that was planned.
"""

from pathlib import PurePosixPath

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import SourceChanged

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Suffix, after that of JSONL or CSV, to Arrow's name of the codec."""


def compression(uri: str) -> str | None:
    """Arrow's name of the codec by the suffix; None for no compression."""
    return COMPRESSIONS.get(PurePosixPath(uri).suffix.lower())


def check_unchanged(source: SourceFile) -> None:
    """SourceChanged when the file is gone, or not the one that was planned."""
    try:
        now = storage.stat(source.uri)
    except FileNotFoundError as error:
        raise gone(source) from error
    if (now.size, now.fingerprint) != (source.size, source.fingerprint):
        raise SourceChanged(
            f"{source.uri} changed since the job was submitted (it had {source.size} bytes and has "
            f"{now.size}); put the old one back and run `nightshift retry JOB --dead`, or submit a "
            "new job"
        )


def gone(source: SourceFile) -> SourceChanged:
    """The error for a file that is not there any more."""
    return SourceChanged(
        f"{source.uri} is gone since the job was submitted; put it back and run `nightshift retry JOB "
        "--dead`, or submit a new job"
    )
