"""Rows in and parts out, whatever the format: reads a descriptor, writes a part.

What only one format does is in `common.parquet`, `common.jsonl`, `common.csv_copy` and
`common.openai_batch`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, InputFormat, SourceFile
from nightshift.common.errors import BadInput, SourceChanged
from nightshift.common.formats import csv_copy
from nightshift.common.formats.jsonl import jsonl, openai_batch
from nightshift.common.formats.parquet import parquet
from nightshift.common.formats.parquet.column_types import input_field, plain_type
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind
from nightshift.common.storage import FileInfo

__all__ = [
    "PartFacts",
    "ReadCache",
    "Rows",
    "check_content",
    "compression",
    "file_format",
    "iter_part_batches",
    "merge_schemas",
    "part_metadata",
    "part_schema",
    "read_part",
    "read_rows",
    "write_batches",
    "write_part",
]

OutputFormat = Literal["parquet", "jsonl"]

SUFFIXES: dict[str, InputFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
}

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Suffix to Arrow's name of the codec; after that of JSONL and CSV."""

REFUSED_SUFFIXES = {
    ".json": "holds one value and not rows: write an object a line, as `jq -c '.[]'` does, and "
    "call it .jsonl",
    ".xz": "cannot be read: compress it with gzip or zstd instead",
    ".zip": "is an archive: unpack it",
    ".xlsx": "is a workbook: save it as CSV",
}
"""What people try, and what to do instead."""

PART_BATCH_ROWS = 4096
"""Rows that are in memory at once while a part is streamed."""

_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file, whose name would end in .gz",
    b"\x28\xb5\x2f\xfd": "a zstd file, whose name would end in .zst",
    b"PK\x03\x04": "a zip file, which is not supported",
}


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a descriptor: each is in `row_index` or in `bad`, never in both.

    `table` is aligned with `row_index`, `bad_table` with the ascending keys of `bad`; the latter
    has what could be read of those rows (the id, mostly) and null for the rest. Both have the
    same columns, and the right number of rows even when there are no columns.
    """

    table: pa.Table
    row_index: list[int]
    bad: dict[int, Failure]
    bad_table: pa.Table


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the ledger keeps of a part: size in bytes, SHA-256 in hexadecimal digits, rows."""

    bytes: int
    checksum: str
    rows: int


# ---------------------------------------------------------------- rows in


def read_rows(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    *,
    schema: pa.Schema | None = None,
    id_column: str | None = None,
) -> Rows:
    """The rows of a batch, with `columns` and the id; every row asked for comes back, good or bad.

    `columns` None reads all. `schema` has the planned types: JSONL values are brought to them,
    and a row with a value that cannot be is `bad_type`. A nested column may come wider than
    planned, with keys that the first rows of the file lacked. A null id is `bad_record`.

    Raises SourceChanged when the file is gone or not the one that was planned, StorageUnavailable
    when it cannot be read now, BadInput for a Parquet column that does not exist.
    """
    if columns is not None and id_column is not None:
        columns = [*columns, *({id_column} - set(columns))]
    source = descriptor.source
    _check_unchanged(source)
    try:
        if source.format == "parquet":
            table, found, place = parquet.read(descriptor, columns, cache, _check_unchanged)
            table = _typed_nulls(table, schema)
        elif source.format == "csv":
            table, found, place = _read_csv(descriptor, columns, cache, schema)
        else:
            parse = openai_batch.parse if source.format == "openai" else jsonl.parse
            table, found, place = jsonl.read(descriptor, columns, schema, parse)
            _check_unchanged(source)
    except FileNotFoundError as error:
        raise SourceChanged(_GONE.format(source.uri)) from error
    wanted = list(descriptor.rows)
    bad = {index: Failure.of(*why) for index, why in found.items()}
    if id_column is not None:
        for index, valid in zip(wanted, _validity(table, id_column), strict=True):
            if not valid and index not in bad:
                bad[index] = Failure.of(RowErrorKind.BAD_RECORD, f"{place(index)}: id is null")
    return _parted(table, wanted, bad)


def _read_csv(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema | None,
) -> tuple[pa.Table, jsonl.Bad, Callable[[int], str]]:
    names = None if columns is None else [*columns, csv_copy.WHY]
    table, found, place = parquet.read(descriptor, names, cache, _check_unchanged)
    wanted = list(descriptor.rows)
    for at, why in enumerate(table.column(csv_copy.WHY).to_pylist()):
        if why is not None:
            found[wanted[at]] = (RowErrorKind.BAD_RECORD, f"{place(wanted[at])}: {why}")
    typed, strange = csv_copy.typed(table.drop_columns(csv_copy.WHY), schema)
    for at, why in strange.items():
        found.setdefault(wanted[at], (RowErrorKind.BAD_TYPE, f"{place(wanted[at])}: {why}"))
    return typed, found, place


_GONE = (
    "{} is gone since the job was submitted; put it back and run `nightshift retry JOB --dead`, or "
    "submit a new job"
)


def _check_unchanged(source: SourceFile) -> None:
    try:
        now = storage.stat(source.uri)
    except FileNotFoundError as error:
        raise SourceChanged(_GONE.format(source.uri)) from error
    if (now.size, now.fingerprint) != (source.size, source.fingerprint):
        raise SourceChanged(
            f"{source.uri} changed since the job was submitted (it had {source.size} bytes and has "
            f"{now.size}); put the old one back and run `nightshift retry JOB --dead`, or submit a "
            "new job"
        )


def _typed_nulls(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Columns of only nulls get the type that other files give them."""
    planned = {} if schema is None else {field.name: field.type for field in schema}
    for at, column in enumerate(table.schema):
        if pa.types.is_null(column.type) and column.name in planned:
            typed = table.column(at).cast(planned[column.name])
            table = table.set_column(at, column.name, typed)
    return table


def _validity(table: pa.Table, column: str) -> list[bool]:
    if column not in table.column_names:
        return [False] * table.num_rows
    valid: list[bool] = table.column(column).is_valid().to_pylist()
    return valid


def _parted(table: pa.Table, wanted: list[int], bad: dict[int, Failure]) -> Rows:
    if not bad:
        return Rows(table, wanted, bad, table.slice(0, 0))
    good = [index not in bad for index in wanted]
    return Rows(
        table=table.filter(pa.array(good)),
        row_index=[index for index in wanted if index not in bad],
        bad=dict(sorted(bad.items())),
        bad_table=table.filter(pa.array([not is_good for is_good in good])),
    )


# ---------------------------------------------------------------- what a file is


def file_format(uri: str, declared: InputFormat | None = None) -> InputFormat:
    """The declared format, else what the suffix says; BadInput when it says nothing we read."""
    packed = compression(uri)
    bare = PurePosixPath(uri).with_suffix("") if packed else PurePosixPath(uri)
    suffix = bare.suffix.lower()
    found = declared or SUFFIXES.get(suffix)
    if found == "parquet" and packed:
        raise BadInput(f"{uri}: Parquet is compressed inside: decompress the file around it")
    if found is not None:
        return found
    works = ", ".join(SUFFIXES)
    if suffix in REFUSED_SUFFIXES:
        raise BadInput(f"{uri}: a {suffix} file {REFUSED_SUFFIXES[suffix]}; what works is {works}")
    raise BadInput(
        f"{uri}: the suffix does not tell the format; what works is {works}, or say input.format"
    )


def compression(uri: str) -> str | None:
    """Arrow's name of the codec that the suffix tells, None where it tells none."""
    return COMPRESSIONS.get(PurePosixPath(uri).suffix.lower())


def check_content(info: FileInfo, kind: InputFormat) -> None:
    """Looks at the first bytes; BadInput when they are not of that format."""
    if info.size == 0:
        if kind == "parquet":
            raise BadInput(f"{info.uri} is empty (0 bytes), which is no Parquet file")
        return
    start = storage.read_range(info.uri, 0, 4)
    looks = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if kind == "parquet" and start != b"PAR1":
        raise BadInput(f"{info.uri} is no Parquet file but {looks or 'something else'}")
    if kind != "parquet" and looks is not None and compression(info.uri) is None:
        raise BadInput(f"{info.uri} is no {_NAMES[kind]} file but {looks}")


_NAMES: dict[InputFormat, str] = {
    "parquet": "Parquet",
    "jsonl": "JSONL",
    "csv": "CSV",
    "openai": "JSONL",
}


def merge_schemas(
    found: Iterable[tuple[str, InputFormat, pa.Schema]], columns: Sequence[str] | None = None
) -> pa.Schema:
    """One schema for all files.

    Parquet files must agree on the used `columns` (None: on all), a column of only nulls agrees
    with every type; else BadInput names file and column. JSONL files are merged, and mixed
    columns become strings; where there are Parquet files too, their types count. Duplicate column
    names are BadInput where they are used. CSV files must have the same columns, and are merged.
    """
    fixed: dict[str, tuple[str, pa.DataType]] = {}
    merged: dict[str, pa.DataType] = {}
    strict: list[tuple[str, pa.Schema]] = []
    for uri, kind, schema in found:
        if kind in ("parquet", "csv"):
            strict.append((uri, schema))
        if kind != "parquet":
            for column in schema:
                known = merged.get(column.name, pa.null())
                merged[column.name] = jsonl.merged_type(known, column.type)
            continue
        _check_doubles(uri, schema, columns)
        for column in schema:
            _agree(uri, column, fixed, used=columns is None or column.name in columns)
    for uri, schema in strict:
        for name in fixed.keys() | merged.keys() if columns is None else columns:
            if name not in schema.names and (name in fixed or name in merged):
                raise BadInput(f"{uri} has no column {name!r}, which other input files have")
    types = merged | {
        name: kind
        for name, (_, kind) in fixed.items()
        if not (pa.types.is_null(kind) and name in merged)
    }
    return pa.schema([input_field(name, kind) for name, kind in types.items()])


def _check_doubles(uri: str, schema: pa.Schema, columns: Sequence[str] | None) -> None:
    for name in set(schema.names if columns is None else columns):
        if len(schema.get_all_field_indices(name)) > 1:
            raise BadInput(f"{uri} has the column {name!r} more than once")


def _agree(
    uri: str, column: pa.Field, fixed: dict[str, tuple[str, pa.DataType]], *, used: bool
) -> None:
    known = fixed.get(column.name)
    if known is None or pa.types.is_null(known[1]):
        fixed[column.name] = (uri, column.type)
        return
    plain = plain_type(known[1])
    if known[1] == column.type or pa.types.is_null(column.type):
        return
    if plain == plain_type(column.type):
        fixed[column.name] = (known[0], plain)
    elif used:
        raise BadInput(
            f"the column {column.name!r} is {column.type} in {uri} but {known[1]} in {known[0]}; "
            "all files of an input need the same type"
        )


# ---------------------------------------------------------------- parts out


def write_part(
    uri: str, table: pa.Table, kind: OutputFormat, metadata: dict[str, str]
) -> PartFacts:
    """Writes a part whole; Parquet carries `metadata` under keys that start with `nightshift.`.

    Raises StorageUnavailable.
    """
    return write_encoded(uri, encode_part(table, kind, metadata), len(table))


def encode_part(table: pa.Table, kind: OutputFormat, metadata: dict[str, str]) -> pa.Buffer:
    """The bytes of a part. In memory, since Arrow would come back to Python for every piece of it
    that goes to a file.
    """
    sink = pa.BufferOutputStream()
    _encode(sink, table.to_batches(), table.schema, kind, metadata)
    return sink.getvalue()


def write_encoded(uri: str, data: pa.Buffer, rows: int) -> PartFacts:
    """Writes what `encode_part` made. Raises StorageUnavailable."""
    written = storage.write_bytes(uri, memoryview(data), replace=False)
    return PartFacts(written.bytes, written.checksum, rows)


def write_batches(
    uri: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    kind: OutputFormat,
    metadata: dict[str, str],
    *,
    replace: bool = False,
) -> PartFacts:
    """Like `write_part` for a stream of batches of one schema, in bounded memory.

    `replace` is storage.write_whole's.
    """
    rows = 0

    def write(sink: BinaryIO) -> None:
        nonlocal rows
        rows = _encode(sink, batches, schema, kind, metadata)

    written = storage.write_whole(uri, write, replace=replace)
    return PartFacts(written.bytes, written.checksum, rows)


def _encode(
    sink: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    kind: OutputFormat,
    metadata: dict[str, str],
) -> int:
    if kind == "parquet":
        return parquet.write(batches, schema, sink, metadata)
    return jsonl.write(batches, sink)


def read_part(uri: str, kind: OutputFormat, schema: pa.Schema | None = None) -> pa.Table:
    """A whole part; JSONL needs the `schema` to bring back types that JSON does not have.

    Raises FileNotFoundError, BadInput when the part is damaged, StorageUnavailable.
    """
    known = schema or part_schema(uri, kind)
    return pa.Table.from_batches(iter_part_batches(uri, kind, known), known)


def iter_part_batches(
    uri: str,
    kind: OutputFormat,
    schema: pa.Schema | None = None,
    batch_rows: int = PART_BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in order, `batch_rows` at a time, cast to `schema` where it is given."""
    if kind == "jsonl":
        yield from jsonl.iter_batches(uri, schema or part_schema(uri, kind), batch_rows)
        return
    for batch in parquet.iter_batches(uri, batch_rows):
        bare = batch.replace_schema_metadata(None)
        if schema is not None and not bare.schema.equals(schema):
            bare = bare.select(schema.names).cast(schema)
        yield bare


def part_schema(uri: str, kind: OutputFormat) -> pa.Schema:
    """The columns of a part as its file tells them, without metadata."""
    if kind == "parquet":
        return parquet.read_footer(uri).schema.remove_metadata()
    found = jsonl.head_schema(uri)
    return pa.schema([(column.name, jsonl.settled(column.type)) for column in found])


def part_metadata(uri: str) -> dict[str, str]:
    """The provenance in a Parquet part, without the prefix of its keys."""
    prefix = parquet.METADATA_PREFIX.encode()
    known: dict[bytes, bytes] = parquet.read_footer(uri).metadata.metadata or {}
    return {
        key.removeprefix(prefix).decode(): value.decode()
        for key, value in known.items()
        if key.startswith(prefix)
    }
