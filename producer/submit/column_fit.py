"""Whether the columns of new files fit those of a job, which its first files fixed."""

from collections.abc import Collection, Sequence

import pyarrow as pa

from nightshift.common.descriptor import InputFormat
from nightshift.common.formats.jsonl.columns import merged_type
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.parquet.column_types import canonical_type, written_schema


def misfit(
    known: pa.Schema,
    new: pa.Schema,
    kinds: Collection[InputFormat],
    used: Sequence[str] | None,
    path: Collection[str] = (),
) -> str | None:
    """What the new files have or lack, as the end of a sentence; None where all fits.

    `used` are the columns that the job reads, None all of them. Files of lines may lack a column:
    its values are null. Columns of CSV, of lines and of the path are texts or JSON, which are read
    as what the job has; Parquet must have that type. A new column without any value fits every type. A
    column of the job that had no value has no type, so new values of it do not fit: they would be lost.
    """
    known_types, new_types = _types(known), _types(new)
    are_lines = any(FORMATS[kind].may_have_more for kind in kinds)
    say_types = any(FORMATS[kind].says_types for kind in kinds)
    for name in known.names if used is None else used:
        if name not in known.names:
            continue
        if name not in new.names:
            if are_lines and name not in path:
                continue
            return f"no column {name!r}, which the job reads"
        as_text = name in path or not say_types
        if why := _type_misfit(name, known_types[name], new_types[name], as_text=as_text):
            return why
    extra = [] if used is not None or are_lines else sorted(set(new.names) - set(known.names))
    return f"the column {extra[0]!r}, which the job does not have" if extra else None


def _type_misfit(name: str, known: pa.DataType, new: pa.DataType, *, as_text: bool) -> str | None:
    if pa.types.is_null(known) and not pa.types.is_null(new):
        return f"values in the column {name!r}, which had none in the first files of the job"
    if not _fits(known, new, as_text=as_text):
        return f"{new} in the column {name!r}, which is {known} in the job"
    return None


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The types of the columns; null for one that had no value in any file."""
    written = written_schema(schema)
    return {
        field.name: at.type if pa.types.is_null(at.type) else field.type
        for field, at in zip(schema, written, strict=True)
    }


def _fits(known: pa.DataType, new: pa.DataType, *, as_text: bool) -> bool:
    if pa.types.is_null(new):
        return True
    if not as_text:
        return bool(canonical_type(known) == canonical_type(new))
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        types = {field.name: field.type for field in known}
        common = (field for field in new if field.name in types)
        return all(_fits(types[field.name], field.type, as_text=True) for field in common)
    if pa.types.is_list(known) and pa.types.is_list(new):
        return _fits(known.value_type, new.value_type, as_text=True)
    return bool(merged_type(known, new) == known)
