"""One schema for all files of an input, whatever their formats."""

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from nightshift.common.descriptor import InputFormat
from nightshift.common.errors import BadInput
from nightshift.common.formats.jsonl.columns import merged_type
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet.column_types import (
    canonical_type,
    input_field,
    written_schema,
)
from nightshift.common.public_text import private


def merge_schemas(
    found: Iterable[tuple[str, InputFormat, pa.Schema]], columns: Sequence[str] | None = None
) -> pa.Schema:
    """One schema for all files.

    Parquet files must have the same types in the used `columns` (None: in all), and a column of
    only nulls fits every type. Columns of JSONL and CSV files are merged, and mixed columns become
    strings; the types of Parquet files win over them. All Parquet and CSV files must have the used
    columns. BadInput names the file and column that differ, and a used column that comes twice.
    """
    fixed: dict[str, tuple[str, pa.DataType]] = {}
    merged: dict[str, pa.DataType] = {}
    strict: list[tuple[str, pa.Schema]] = []
    for uri, kind, schema in found:
        known = FORMATS[kind]
        if known.says_columns:
            strict.append((uri, schema))
        if not known.says_types:
            for column in schema:
                so_far = merged.get(column.name, pa.null())
                merged[column.name] = merged_type(so_far, column.type)
            continue
        for name in set(schema.names if columns is None else columns):
            if len(schema.get_all_field_indices(name)) > 1:
                raise BadInput(f"{private(uri)} has the column {name!r} more than once")
        for column in schema:
            _agree(uri, column, fixed, used=columns is None or column.name in columns)
    for uri, schema in strict:
        there = set(schema.names)  # Arrow makes the list anew each time
        for name in fixed.keys() | merged.keys() if columns is None else columns:
            if name not in there and (name in fixed or name in merged):
                raise BadInput(
                    f"{private(uri)} has no column {name!r}, which other input files have"
                )
    types = merged | {
        name: kind
        for name, (_, kind) in fixed.items()
        if not (pa.types.is_null(kind) and name in merged)
    }
    return pa.schema([input_field(name, kind) for name, kind in types.items()])


def with_late_texts(
    schema: pa.Schema,
    passed: Collection[str],
    formats: Collection[InputFormat],
    chats: str | None = None,
) -> pa.Schema:
    """The schema with texts for columns of JSON lines that are passed through and are null so far: only first
    rows were looked at, and later ones may have values. Without this a part keeps such a column as nulls.

    Where all input is JSON lines, the column `chats` is JSON text, too: its messages differ in their fields
    and types, and no struct would hold each as it was written.
    """
    lines = [FORMATS[each].may_have_more for each in formats]
    if not any(lines):
        return schema
    exact = {chats} if all(lines) else set()
    return pa.schema(
        [
            input_field(field.name, pa.string())
            if field.name in exact or (field.name in passed and pa.types.is_null(in_file))
            else field
            for field, in_file in zip(schema, written_schema(schema).types, strict=True)
        ]
    )


def _agree(
    uri: str, column: pa.Field, fixed: dict[str, tuple[str, pa.DataType]], *, used: bool
) -> None:
    known = fixed.get(column.name)
    if known is None or pa.types.is_null(known[1]):
        fixed[column.name] = (uri, column.type)
        return
    canonical = canonical_type(known[1])
    if known[1] == column.type or pa.types.is_null(column.type):
        return
    if canonical == canonical_type(column.type):
        fixed[column.name] = (known[0], canonical)
    elif used:
        raise BadInput(
            f"the column {column.name!r} is {column.type} in {private(uri)} but {known[1]} in {private(known[0])}; "
            "all files of an input need the same type"
        )
