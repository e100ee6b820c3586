"""Columns that stand in the path of a file: folders called key=value, as Hive and Spark write."""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.spec import InputSpec

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Means null in the name of a folder."""

Path = Mapping[str, str | None]


def columns(spec_input: InputSpec, uri: str) -> Path:
    """Column to text (None: null) of a file, from the folders below those that the input names;
    empty where the input is not partitioned.
    """
    return dict(_pairs(spec_input, uri)) if spec_input.partitioning == "hive" else {}


def detected(spec_input: InputSpec, uris: Iterable[str]) -> bool:
    """True when every file lies in folders of the same keys, each of them once.

    BadInput where the input was declared to be partitioned and is not.
    """
    first: tuple[str, list[str]] | None = None
    for uri in uris:
        keys = [key for key, _ in _pairs(spec_input, uri)]
        first = first or (uri, keys)
        if not keys or len(set(keys)) < len(keys) or keys != first[1]:
            if spec_input.partitioning == "hive":
                raise BadInput(
                    f"input.partitioning is hive, but {uri} lies in folders of the keys "
                    f"{keys or 'none'} and {first[0]} in those of {first[1] or 'none'}: all files "
                    "need the same, each once"
                )
            return False
    return True


def schema_of(spec_input: InputSpec, uris: Sequence[str]) -> pa.Schema:
    """The type of each column: int64 where every value is a whole number without a leading zero, else
    string.
    """
    texts: dict[str, set[str | None]] = {}
    for uri in uris:
        for key, text in columns(spec_input, uri).items():
            texts.setdefault(key, set()).add(text)
    return pa.schema([(key, _type(found - {None})) for key, found in texts.items()])


def _type(texts: set[str | None]) -> pa.DataType:
    return pa.int64() if texts and all(map(_is_whole, texts)) else pa.string()


def _is_whole(text: str | None) -> bool:
    if text is None or len(text) > 18 or not text.isascii():
        return False
    digits = text.removeprefix("-")
    return digits.isdigit() and (text == "0" or digits[0] != "0")


def with_path_columns(
    table: pa.Table, rows: int, path: Path, names: Sequence[str] | None, schema: pa.Schema
) -> pa.Table:
    """The table, which has `rows` rows, with the columns of the path, in the order of `names`."""
    order = list(dict.fromkeys([*table.column_names, *path])) if names is None else names
    if not order:
        return table
    arrays = [
        _constant(path[name], schema.field(name).type, rows) if name in path else table.column(name)
        for name in order
    ]
    return pa.Table.from_arrays(arrays, names=list(order))


def _constant(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind) if text is None else pa.repeat(pa.scalar(text).cast(kind), rows)


def _pairs(spec_input: InputSpec, uri: str) -> list[tuple[str, str | None]]:
    below = uri.removeprefix(_root(spec_input, uri)).strip("/").split("/")[:-1]
    pairs: list[tuple[str, str | None]] = []
    for folder in below:
        key, equals, text = folder.partition("=")
        if key and equals:
            value = unquote(text)
            pairs.append((unquote(key), None if value == NO_VALUE else value))
    return pairs


def _root(spec_input: InputSpec, uri: str) -> str:
    """The deepest folder above a file that the input names, without wildcards."""
    roots = [""]
    for named in spec_input.uris:
        root = named.rstrip("/")
        if uri != root and not uri.startswith(f"{root}/"):
            root = storage.fixed_folder(named)
        if uri == root or uri.startswith(f"{root}/"):
            roots.append(root)
    return max(roots, key=len)
