"""The rows of a descriptor, whatever the format of its file: each row comes back, good or bad."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import SourceChanged
from nightshift.common.formats import csv_copy
from nightshift.common.formats.jsonl import openai_batch
from nightshift.common.formats.jsonl import reader as jsonl
from nightshift.common.formats.jsonl.lines import parse_line
from nightshift.common.formats.parquet import reader as parquet
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

_GONE = (
    "{} is gone since the job was submitted; put it back and run `nightshift retry JOB --dead`, or "
    "submit a new job"
)


Found = tuple[pa.Table, dict[int, Failure], Callable[[int], str]]
"""The rows of a batch in order, null where they are bad; why rows are bad, by row index; and a
function that names the place of a row in its file."""


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
    _check_unchanged(descriptor.source)
    wanted = list(descriptor.rows)
    try:
        table, found, place = _read(descriptor, columns, cache, schema)
        if id_column is not None:
            for index, valid in zip(wanted, _validity(table, id_column), strict=True):
                if not valid:
                    found.setdefault(index, Failure(RowErrorKind.BAD_RECORD, "id is null"))
        bad = {
            index: Failure.of(failure.kind, f"{place(index)}: {failure.message}")
            for index, failure in sorted(found.items())
        }
    except FileNotFoundError as error:
        raise SourceChanged(_GONE.format(descriptor.source.uri)) from error
    if not bad:
        return Rows(table, wanted, bad, table.slice(0, 0))
    good = [index not in bad for index in wanted]
    return Rows(
        table=table.filter(pa.array(good)),
        row_index=[index for index in wanted if index not in bad],
        bad=bad,
        bad_table=table.filter(pa.array([not is_good for is_good in good])),
    )


def _read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema | None,
) -> Found:
    source = descriptor.source
    if source.format == "parquet":
        table, bad, place = parquet.read(descriptor, columns, cache, _check_unchanged)
        return _typed_nulls(table, schema), bad, place
    if source.format == "csv":
        return _read_csv(descriptor, columns, cache, schema)
    parse = openai_batch.parse_request if source.format == "openai" else parse_line
    found = jsonl.read(descriptor, columns, schema, parse)
    _check_unchanged(source)
    return found


def _read_csv(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema | None,
) -> Found:
    names = None if columns is None else [*columns, csv_copy.WHY]
    table, bad, place = parquet.read(descriptor, names, cache, _check_unchanged)
    wanted = list(descriptor.rows)
    for index, why in zip(wanted, table.column(csv_copy.WHY).to_pylist(), strict=True):
        if why is not None:
            bad[index] = Failure(RowErrorKind.BAD_RECORD, why)
    converted, misfits = csv_copy.converted(table.drop_columns(csv_copy.WHY), schema)
    for at, why in misfits.items():
        bad.setdefault(wanted[at], Failure(RowErrorKind.BAD_TYPE, why))
    return converted, bad, place


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
