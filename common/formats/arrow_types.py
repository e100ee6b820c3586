"""Arrow types by name, as `output.schema` writes them, and one walk over nested types.

`int64`, `timestamp[us]`, `timestamp[us, Europe/Rome]`, `list<float>`, `list<float>[384]` for lists
of one length, `struct<name: string, score: double>`, and these in one another.
"""

import re
from collections.abc import Callable

import pyarrow as pa

_LIST = re.compile(r"(?:list|fixed_size_list)<(.*)>(?:\[(\d+)\])?", re.DOTALL)
_STRUCT = re.compile(r"struct<(.*)>", re.DOTALL)
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz=)?([^\]]+)\]")
_ITEM = re.compile(r"^(?:item|element): *")
"""The name that Arrow prints for what a list holds."""


MEANT = {
    **dict.fromkeys(("integer", "int", "long", "bigint"), "int64"),
    "smallint": "int16",
    **dict.fromkeys(("number", "numeric", "decimal", "real"), "double"),
    **dict.fromkeys(
        ("str", "text", "varchar", "char", "uuid", "json", "any", "category", "enum"), "string"
    ),
    **dict.fromkeys(("datetime", "timestamp", "timestamptz"), "timestamp[us]"),
    "time": "time64[us]",
    **dict.fromkeys(("date",), "date32"),
    **dict.fromkeys(("bytes", "blob", "bytea"), "binary"),
    **dict.fromkeys(("list", "array"), "list<string>"),
    **dict.fromkeys(
        ("object", "dict", "map", "struct", "record"), "struct<name: string>, or string for JSON"
    ),
}
"""The Arrow type that is meant by a word of other languages."""

SOME = "int64, double, string, bool, date32, timestamp[us], list<float> or struct<name: string>"


def _no_type(name: str) -> str:
    found = re.fullmatch(
        r"(?:list|array)\s*[\[(]\s*([\w ]+?)\s*[\])]|([\w ]+?)\s*\[\]", name, re.IGNORECASE
    )
    if found:
        inner = (found[1] or found[2]).lower()
        return f"{name!r} is no type: write list<{MEANT.get(inner, inner)}>"
    word = re.sub(r"\(.*\)$", "", name.lower()).strip()
    return f"{name!r} is no type: write {MEANT.get(word) or f'a type such as {SOME}'}"


def arrow_type(name: str) -> pa.DataType:
    """The type of this name; ValueError for a name that there is no type for."""
    name = name.strip()
    if found := _LIST.fullmatch(name):
        inner = arrow_type(_ITEM.sub("", found[1]))
        return pa.list_(inner, int(found[2])) if found[2] else pa.list_(inner)
    if found := _STRUCT.fullmatch(name):
        return pa.struct([_field(part) for part in _parts(found[1])])
    if found := _ZONED.fullmatch(name):
        return pa.timestamp(found[1], found[2])
    try:
        return pa.type_for_alias(name)
    except ValueError as error:
        raise ValueError(_no_type(name)) from error


def map_type(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `change` applied to every type that is nested in it, from the inside out, and
    at last to itself. Children keep their names.
    """
    types = pa.types

    def child(field: pa.Field) -> pa.Field:
        return pa.field(field.name, map_type(field.type, change))

    if types.is_list(kind):
        kind = pa.list_(child(kind.value_field))
    elif types.is_large_list(kind):
        kind = pa.large_list(child(kind.value_field))
    elif types.is_fixed_size_list(kind):
        kind = pa.list_(child(kind.value_field), kind.list_size)
    elif types.is_map(kind):
        kind = pa.map_(map_type(kind.key_type, change), child(kind.item_field))
    elif types.is_struct(kind):
        kind = pa.struct([child(field) for field in kind])
    return change(kind)


def storable_type(kind: pa.DataType) -> pa.DataType:
    """The type as a file can keep it: only nulls, and objects without a key, become strings."""
    return map_type(kind, _storable)


def _storable(kind: pa.DataType) -> pa.DataType:
    says_nothing = pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
    return pa.string() if says_nothing else kind


def _field(text: str) -> pa.Field:
    name, colon, kind = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text.strip()!r} is no field of a struct, which is written name: type")
    return pa.field(name.strip(), arrow_type(kind))


def _parts(text: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<[") - (character in ">]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
