"""The rows of a batch as its spec sees them: out of a copy where the file itself cannot be read
from the middle, and with the columns that stand in its path.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, SourceFile
from nightshift.common.errors import SourceChanged
from nightshift.common.formats import hive, input_rows, registry
from nightshift.common.formats.input_rows import Rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import InputSpec, JobSpec, digest

FOLDER = "_input"
"""Folder of copies in the output directory; readers of datasets skip names with an underscore."""


def is_streamed(uri: str, kind: InputFormat) -> bool:
    """True for a file that can only be read from its start, so that a copy of it is needed."""
    return kind == "csv" or registry.compression(uri) is not None


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
    delimiter = spec_input.delimiter if kind == "csv" else None
    identity = [uri, kind, *facts, delimiter, limit]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(uri).name)[:80]
    suffix = "parquet" if kind == "csv" else kind
    return f"{output_uri.rstrip('/')}/{FOLDER}/{digest(identity)[:16]}-{stem}.{suffix}"


def copy_of(spec_input: InputSpec, output_uri: str, source: SourceFile) -> str | None:
    """Where the copy of a planned file lies; None where the file needs no copy."""
    if not is_streamed(source.uri, source.format):
        return None
    facts = (source.size, source.fingerprint)
    limit = rows_left(spec_input, source)
    return copy_uri(spec_input, output_uri, source.uri, source.format, facts, limit)


def rows_left(spec_input: InputSpec, source: SourceFile) -> int | None:
    """How many rows of the input's limit are left after the files before this one."""
    return None if spec_input.limit is None else spec_input.limit - source.first_row


def read_rows(
    spec: JobSpec,
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
) -> Rows:
    """The rows of a batch with `columns` and the id, see `input_rows.read_rows`.

    `schema` is that of the job's input. Also raises SourceChanged when a copy is gone.
    """
    source, column = descriptor.source, spec.input.id
    path = hive.columns(spec.input, source.uri)
    if columns is not None and column is not None:
        columns = list(dict.fromkeys([*columns, column]))
    rows = input_rows.read_rows(
        replace(descriptor, source=_readable(spec, source)),
        None if columns is None else [name for name in columns if name not in path],
        cache,
        schema=schema,
        id_column=None if column in path else column,
    )
    if not path:
        return rows
    return replace(
        rows,
        table=hive.with_path_columns(rows.table, len(rows.row_index), path, columns, schema),
        bad_table=hive.with_path_columns(rows.bad_table, len(rows.bad), path, columns, schema),
    )


def _readable(spec: JobSpec, source: SourceFile) -> SourceFile:
    uri = copy_of(spec.input, spec.output.uri, source)
    if uri is None:
        return source
    try:
        info = storage.stat(uri)
    except FileNotFoundError as error:
        raise SourceChanged(
            f"{uri}, the copy of {source.uri} that is read, is gone; submit the same spec once more, "
            "which makes it again, and run `nightshift retry JOB --dead`"
        ) from error
    return replace(source, uri=uri, size=info.size, fingerprint=info.fingerprint, origin=source.uri)
