"""Copies of input files that cannot be read from the middle: where a copy lies, see `Format.copy`."""

import re
from pathlib import PurePosixPath

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat, SourceFile
from nightshift.common.formats.known import FORMATS, is_streamed
from nightshift.common.spec import InputSpec, digest

FOLDER = "_input"
"""Folder of copies in the output directory; readers of datasets skip names with an underscore."""

SUFFIX = ".copy"
"""Suffix of copies: a reader of `**/*.parquet` or `**/*.jsonl` must not count their rows."""


def folder(output_uri: str) -> str:
    """Where the copies of a job lie."""
    return f"{output_uri.rstrip('/')}/{FOLDER}"


def there(output_uri: str) -> set[str]:
    """The copies that are there now, as URIs."""
    return {f"{folder(output_uri)}/{name}" for name in storage.list_names(folder(output_uri))}


def copy_uri(
    spec_input: InputSpec,
    output_uri: str,
    uri: str,
    kind: InputFormat,
    facts: tuple[int, str],
    limit: int | None,
) -> str:
    """Where the copy of a file lies.

    The name is made of the file, its size and fingerprint (`facts`), what the spec says about
    reading it, and how many of its first rows are copied at most.
    """
    known = FORMATS[kind]
    # Lines have no delimiter.
    delimiter = spec_input.delimiter if known.is_copied else None
    identity = [uri, kind, *facts, delimiter, limit]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(uri).name)[:80]
    return f"{folder(output_uri)}/{digest(identity)[:16]}-{stem}.{known.copy_suffix}{SUFFIX}"


def copy_of(spec_input: InputSpec, output_uri: str, source: SourceFile) -> str | None:
    """Return the URI of the copy of a planned file; None if the file needs no copy."""
    if not is_streamed(source.uri, source.format):
        return None
    facts = (source.size, source.fingerprint)
    limit = rows_left(spec_input, source)
    return copy_uri(spec_input, output_uri, source.uri, source.format, facts, limit)


def rows_left(spec_input: InputSpec, source: SourceFile) -> int | None:
    """How many rows of the input's limit are left after the files before this one; None where a copy has all
    rows of its file, as for a limit of rows that match a condition.
    """
    if spec_input.where is not None:
        return None
    return None if spec_input.limit is None else spec_input.limit - source.first_row
