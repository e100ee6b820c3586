"""The arranged copy of an input: the rows of its files in another order, each with its place among them.

A copy is one Parquet file of texts and numbers under their own names. Values of nested columns of JSON
and CSV files stand there as JSON text, since their types are those of the rows that are read together.
A row that cannot be read stands there with the reason.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import SourceChanged
from nightshift.common.formats.jsonl.columns import misfit, to_array
from nightshift.common.formats.jsonl.lines import EXACT
from nightshift.common.formats.parquet import read as parquet
from nightshift.common.formats.parquet.footer import METADATA_PREFIX, read_footer
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import table_of
from nightshift.common.public_text import private
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind

SUFFIX = ".arranged"
"""Suffix of copies: no reader of `**/*.parquet` counts their rows."""

VERSION = 1
"""Version of the content of a copy; part of its name, so that no release reads a copy of another version."""

OFFSET, KIND, WHY = "\0offset", "\0kind", "\0why"
"""Columns of a copy: how many rows of its files stand before the row, and why the row cannot be read."""

OWN = (pa.field(OFFSET, pa.int64()), pa.field(KIND, pa.string()), pa.field(WHY, pa.string()))

AS_JSON = f"{METADATA_PREFIX}json"
"""Key in the metadata of a copy: the columns whose values are JSON text, as a list."""


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of an input stand in its copy: `plain` ones with their planned types, those in
    `as_json` as text. `empty` ones have no value.
    """

    plain: tuple[str, ...]
    as_json: tuple[str, ...]
    empty: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema, *, stable: bool) -> "Columns":
        """The columns of an input; `stable` says that every row has the types of the schema, which
        holds of Parquet.
        """
        found: dict[str, list[str]] = {"plain": [], "as_json": [], "empty": []}
        for column in schema:
            if pa.types.is_null(column.type):
                kind = "empty"
            else:
                kind = "plain" if stable or not pa.types.is_nested(column.type) else "as_json"
            found[kind].append(column.name)
        return cls(**{kind: tuple(names) for kind, names in found.items()})

    def schema(self, planned: pa.Schema) -> pa.Schema:
        """The columns of the copy."""
        return pa.schema(
            [
                *OWN,
                *(planned.field(name) for name in self.plain),
                *(pa.field(name, pa.string()) for name in self.as_json),
            ]
        )

    @property
    def metadata(self) -> dict[str, str]:
        """For the copy."""
        return {AS_JSON: json.dumps(self.as_json)}


def read(
    descriptor: Descriptor,
    columns: Sequence[str] | None,
    cache: ReadCache,
    schema: pa.Schema,
    fixed: Collection[str] = (),
) -> tuple[pa.Table, list[int], dict[int, Failure]]:
    """The rows of a batch in the order of the copy, their row indices, and why rows cannot be read.

    Without `columns` all of the schema are read. The columns `fixed` have the types of the schema, and a
    value that does not fit is an error of its row. Raises SourceChanged when the copy is gone or
    damaged, or has no such column; StorageUnavailable.
    """
    source = descriptor.source
    names = schema.names if columns is None else list(columns)
    held = [name for name in names if not pa.types.is_null(schema.field(name).type)]
    table, as_json = _rows_of_copy(descriptor, held, cache)
    indices = [source.first_row + offset for offset in table.column(OFFSET).to_pylist()]
    failures = {
        index: Failure(RowErrorKind(kind), why)
        for index, kind, why in zip(
            indices, *(table.column(name).to_pylist() for name in (KIND, WHY)), strict=True
        )
        if kind is not None
    }
    values: dict[str, pa.Array | pa.ChunkedArray] = {}
    for name in names:
        if name not in held:
            values[name] = pa.nulls(len(table))
        elif name not in as_json:
            values[name] = table.column(name)
        else:
            field = schema.field(name)
            values[name], misfits = _parsed(table.column(name), field, fixed=name in fixed)
            for place, why in misfits.items():
                failure = Failure.of(RowErrorKind.BAD_TYPE, f"{source.given_uri}: {why}")
                failures.setdefault(indices[place], failure)
    return table_of(values, len(indices)), indices, failures


def _rows_of_copy(
    descriptor: Descriptor, columns: Sequence[str], cache: ReadCache
) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows of a batch as they stand in the copy, and the columns whose values are JSON text."""
    source, at = descriptor.source, descriptor.locator
    assert at is not None
    here = RowRanges.of((at.byte_offset, at.byte_offset + at.byte_length))
    try:
        copy = copied(source)
        as_json = cache.get(
            ("arranged", copy.uri, copy.fingerprint), lambda: json_columns(copy.uri), lambda _: 1000
        )
        own = [field.name for field in OWN]
        table, damaged, _ = parquet.rows_of(Descriptor(copy, here), [*own, *columns], cache)
    except FileNotFoundError as error:
        raise _unreadable(source, "is gone") from error
    if damaged:
        raise _unreadable(source, "is damaged: remove it")
    wanted = set(descriptor.rows)
    offsets = table.column(OFFSET).to_pylist()
    places = [place for place, offset in enumerate(offsets) if source.first_row + offset in wanted]
    if len(places) != len(wanted):
        raise _unreadable(source, "holds other rows: remove it")
    return table.take(pa.array(places, pa.int64())), as_json


def _parsed(
    column: pa.ChunkedArray, field: pa.Field, *, fixed: bool
) -> tuple[pa.Array | pa.ChunkedArray, dict[int, str]]:
    """The values of a column of JSON text, and by place why one does not fit. As in `formats.jsonl`, a type
    that is not `fixed` may come wider than planned.
    """
    values = [None if text is None else EXACT.decode(text) for text in column.to_pylist()]
    array, misfits = to_array(values, field.type, fixed=fixed)
    whys = {place: misfit(field.name, values[place], field.type) for place in misfits if fixed}
    return array, whys


def copied(source: SourceFile) -> SourceFile:
    """The arranged copy as a file of its own; FileNotFoundError when it is gone."""
    assert source.arranged is not None
    info = storage.stat(source.arranged)
    return replace(
        source,
        uri=info.uri,
        format="parquet",
        size=info.size,
        fingerprint=info.fingerprint,
        first_row=0,
        arranged=None,
    )


def json_columns(uri: str) -> tuple[str, ...]:
    """The columns of a copy whose values are JSON text."""
    metadata: Mapping[bytes, bytes] = read_footer(uri).metadata.metadata
    return tuple(json.loads(metadata[AS_JSON.encode()]))


def _unreadable(source: SourceFile, why: str) -> SourceChanged:
    return SourceChanged(
        f"{private(source.arranged)}, the arranged copy of the input that is read, {why}; run `nightshift "
        "retry JOB --dead`, which makes a copy that is gone again"
    )
