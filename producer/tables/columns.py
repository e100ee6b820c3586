"""Whether parts can become part of a table that exists: a pure comparison of their columns.

A reader gives an older or narrower file the columns of the table, so a part may lack columns, and may have
narrower types where the format promises that they are widened. Tried with deltalake 1.6, pyiceberg 0.12 and
DuckDB 2.0 (tests/unit/test_table_misfits.py).
"""

import pyarrow as pa

from nightshift.common.formats.table_types import TITLES, TableFormat, table_type
from nightshift.common.text import first_few

TYPE_CHARACTERS = 60
"""Longest type of a column in a sentence; a longer one is cut."""

_WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
"""Promotions of Iceberg's specification, which every reader has to know (section Schema Evolution), beside those
of decimals.
"""


def misfit(
    parts: pa.Schema, table: pa.Schema, kind: TableFormat, *, whole: bool = False
) -> str | None:
    """Why parts of this schema cannot become part of a table of that schema, in one sentence with both; None
    where they can. Both as Arrow: parts as they are written, tables as their library shows them.

    Every column of the parts is one of the table, and no column is null in the parts that may not be null in the
    table. Columns that the table alone has are read as null. Delta's types are the same: Delta widens none
    without a table feature that few readers know. An Iceberg table may have the wider type. With `whole` the table
    has no further columns: a merge would not know what to put there.
    """
    why = _struct(list(parts), list(table), kind, "", is_in_map=False)
    more = [name for name in table.names if name not in parts.names]
    if why is None and whole and more:
        why = f"a merge has no values for the column {more[0]!r} of the table"
    if why is None:
        return None
    title = TITLES[kind].partition(" ")[2]
    return f"{why}: the parts have {_short(parts)}, and the {title} has {_short(table)}"


def _struct(
    parts: list[pa.Field], table: list[pa.Field], kind: TableFormat, above: str, *, is_in_map: bool
) -> str | None:
    """The first difference between two lists of fields, which are told apart by their names."""
    theirs = {each.name: each for each in table}
    ours = {each.name for each in parts}
    for part in parts:
        name = above + part.name
        if part.name not in theirs:
            return f"the table has no column {name!r}"
        if why := _field(part, theirs[part.name], kind, name, is_in_map=is_in_map):
            return why
    for each in table:
        if each.name in ours:
            continue
        name = above + each.name
        if not each.nullable:
            return f"the column {name!r} of the table may not be null, and the parts lack it"
        if is_in_map and kind == "delta":  # Delta's own reader fails
            return f"the parts lack the column {name!r}, which lies in a map"
    return None


def _field(
    part: pa.Field, table: pa.Field, kind: TableFormat, name: str, *, is_in_map: bool
) -> str | None:
    types, ours, theirs = pa.types, part.type, table.type
    if part.nullable and not table.nullable:
        return f"the column {name!r} of the table may not be null, and in the parts it may"
    if types.is_struct(ours) and types.is_struct(theirs):
        return _struct(list(ours), list(theirs), kind, f"{name}.", is_in_map=is_in_map)
    if types.is_map(ours) and types.is_map(theirs):
        key = _field(ours.key_field, theirs.key_field, kind, f"{name}.key", is_in_map=True)
        value = _field(ours.item_field, theirs.item_field, kind, f"{name}.value", is_in_map=True)
        return key or value
    if _is_list(ours) and _is_list(theirs):
        inner = ours.value_field, theirs.value_field
        return _field(*inner, kind, f"{name}.element", is_in_map=is_in_map)
    # Libraries show large strings and views for the same type of the table.
    found, wanted = table_type(ours, kind), table_type(theirs, kind)
    if found is not None and (found == wanted or (kind == "iceberg" and _widens(found, wanted))):
        return None
    return f"the column {name!r} is {_cut(ours)} in the parts and {_cut(theirs)} in the table"


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _widens(found: pa.DataType, wanted: pa.DataType | None) -> bool:
    if wanted is None:
        return False
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        return bool(found.scale == wanted.scale and found.precision <= wanted.precision)
    return bool(_WIDER.get(found) == wanted)


def _short(schema: pa.Schema) -> str:
    return f"({first_few([f'{each.name}: {_cut(each.type)}' for each in schema], 20)})"


def _cut(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= TYPE_CHARACTERS else f"{text[: TYPE_CHARACTERS - 1]}…"
