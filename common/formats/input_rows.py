"""The rows of a batch, whatever the format of its file: each row comes back, good or bad.

They are read out of a copy where the file itself cannot be read from the middle, and have the columns
that stand in the path of the file.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import SourceChanged
from nightshift.common.formats import arranged, hive, input_copies, source_files
from nightshift.common.formats.jsonl import read as jsonl
from nightshift.common.formats.jsonl.numbers import json_text
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.table_types import without_misfits
from nightshift.common.formats.values import table_of
from nightshift.common.public_text import private
from nightshift.common.row_errors import Failure
from nightshift.common.spec import JobSpec
from nightshift.common.states import RowErrorKind


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a descriptor: each is in `row_index` or in `bad`, never in both.

    `table` is aligned with `row_index`, which is ascending, or in the order of an arranged copy where the rows
    were asked for in that order. `bad_table` is aligned with the keys of `bad`, ascending; it has what could be
    read of those rows (the id, mostly) and null for the rest. Both tables have the same columns, and the right
    number of rows even when there are no columns.
    """

    table: pa.Table
    row_index: list[int]
    bad: dict[int, Failure]
    bad_table: pa.Table

    @property
    def numbers(self) -> list[int]:
        """The numbers of good and bad rows together, ascending."""
        return sorted([*self.row_index, *self.bad])

    def whole(self) -> pa.Table:
        """Good and bad rows together, ascending."""
        if not self.bad:
            return self.table
        table = pa.concat_tables([self.table, self.bad_table], promote_options="permissive")
        return _taken(table, _ascending([*self.row_index, *self.bad]))


def read_rows(
    spec: JobSpec,
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
    *,
    as_arranged: bool = False,
    fixed: Collection[str] = (),
) -> Rows:
    """The rows of a batch with `columns` and the id, see `read_file_rows`; in the order of an arranged
    copy where there is one and `as_arranged` asks for it. Columns that are passed through are `fixed`,
    too: their types in the output are those of the schema.

    `schema` is that of the job's input. A row with a value that the job's table cannot hold is `bad_type`,
    see `table_types.without_misfits`. Also raises SourceChanged when a copy is gone.
    """
    source, column = descriptor.source, spec.input.id
    fixed = {*spec.passed_columns, *fixed}
    if columns is not None and column is not None:
        columns = list(dict.fromkeys([*columns, column]))
    if source.arranged is not None:
        table, indices, failures = arranged.read(descriptor, columns, cache, schema, fixed)
        if not as_arranged:
            table = _taken(table, _ascending(indices))
            indices.sort()
        return _for_table(spec, source, _divided(table, indices, failures))
    path = hive.columns(spec.input, source.uri)
    rows = read_file_rows(
        replace(descriptor, source=_readable(spec, source)),
        None if columns is None else [name for name in columns if name not in path],
        cache,
        schema=schema,
        id_column=None if column in path else column,
        fixed=fixed,
    )
    rows = _for_table(spec, source, rows)
    if not path:
        return rows
    return replace(
        rows,
        table=hive.with_path_columns(rows.table, len(rows.row_index), path, columns, schema),
        bad_table=hive.with_path_columns(rows.bad_table, len(rows.bad), path, columns, schema),
    )


def _for_table(spec: JobSpec, source: SourceFile, rows: Rows) -> Rows:
    """The rows with null for values that the job's table cannot hold; a row with one is `bad_type`."""
    if spec.output.table is None:
        return rows
    kind = spec.output.table.format
    names = [name for name in spec.passed_columns if name in rows.table.column_names]
    table, misfits = without_misfits(rows.table, names, kind)
    bad_table, _ = without_misfits(rows.bad_table, names, kind)
    bad = rows.bad | {
        rows.row_index[at]: Failure.of(RowErrorKind.BAD_TYPE, f"{source.given_uri}: {why}")
        for at, why in misfits.items()
    }
    if not bad:
        return rows
    whole = pa.concat_tables([table, bad_table], promote_options="permissive")
    return _divided(whole, [*rows.row_index, *rows.bad], bad)


def json_texts(
    spec: JobSpec, descriptor: Descriptor, names: Sequence[str]
) -> dict[str, list[str | None]]:
    """The values of some columns of lines as JSON text, as they stand there; raises what `read_rows`
    raises.
    """
    rows = jsonl.parsed(replace(descriptor, source=_readable(spec, descriptor.source)))
    return {
        name: [None if row.get(name) is None else json_text(row[name]) for row in rows]
        for name in names
    }


def _readable(spec: JobSpec, source: SourceFile) -> SourceFile:
    uri = input_copies.copy_of(spec.input, spec.output.uri, source)
    if uri is None:
        return source
    try:
        info = storage.stat(uri)
    except FileNotFoundError as error:
        raise SourceChanged(
            f"{private(uri)}, the copy of {private(source.uri)} that is read, is gone; run `nightshift retry JOB "
            "--dead`, which makes it again"
        ) from error
    return replace(source, uri=uri, size=info.size, fingerprint=info.fingerprint, origin=source.uri)


def read_file_rows(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    *,
    schema: pa.Schema,
    id_column: str | None = None,
    fixed: Collection[str] = (),
) -> Rows:
    """The rows of a batch out of its file; every row that is asked for comes back, good or bad.

    `columns` has the id, too; None reads all. `schema` has the planned types: JSONL values are
    brought to them, and a row with a value that cannot be is `bad_type`. A nested column may come
    wider than planned, with keys that the first rows of the file lacked; in the columns `fixed` such a
    key makes its row `bad_type`. A null id is `bad_record`.

    Raises SourceChanged when the file is gone or not the one that was planned, StorageUnavailable
    when it cannot be read now, BadInput for a Parquet column that does not exist.
    """
    wanted = list(descriptor.rows)
    try:
        read = FORMATS[descriptor.source.format].read
        table, found, place = read(descriptor, columns, cache, schema, fixed)
        if id_column is not None:
            has_ids = id_column in table.column_names
            ids = table.column(id_column) if has_ids else pa.nulls(table.num_rows)
            for index, valid in zip(wanted, ids.is_valid().to_pylist(), strict=True):
                if not valid:
                    found.setdefault(index, Failure(RowErrorKind.BAD_RECORD, "id is null"))
        bad = {
            index: Failure.of(failure.kind, f"{place(index)}: {failure.message}")
            for index, failure in sorted(found.items())
        }
    except FileNotFoundError as error:
        raise source_files.gone(descriptor.source) from error
    return _divided(table, wanted, bad)


def _divided(table: pa.Table, indices: list[int], bad: dict[int, Failure]) -> Rows:
    """The rows, divided into good and bad ones; the bad ones are put in ascending order."""
    if not bad:
        return Rows(table, indices, bad, table.slice(0, 0))
    places = {index: place for place, index in enumerate(indices)}
    ascending = sorted(bad)
    good = [place for index, place in places.items() if index not in bad]
    return Rows(
        table=_taken(table, good),
        row_index=[indices[place] for place in good],
        bad={index: bad[index] for index in ascending},
        bad_table=_taken(table, [places[index] for index in ascending]),
    )


def _ascending(indices: Sequence[int]) -> list[int]:
    """The places of these numbers in their order."""
    return sorted(range(len(indices)), key=indices.__getitem__)


def _taken(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """The rows at these places; Arrow's take forgets the rows of a table without columns."""
    taken = table.take(pa.array(places, pa.int64()))
    return taken if table.num_columns else table_of({}, len(places))
