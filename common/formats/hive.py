"""Columns that stand in the path of a file: folders called key=value, as Hive and Spark write."""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.spec import InputSpec, JobSpec
from nightshift.common.storage import FileInfo

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Means null in the name of a folder."""

_WHOLE = re.compile("0|[1-9][0-9]{0,17}|-[1-9][0-9]{0,16}")

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
                    f"input.partitioning is hive, but {private(uri)} lies in folders of the keys "
                    f"{keys or 'none'} and {first[0]} in those of {first[1] or 'none'}: all files "
                    "need the same, each once"
                )
            return False
    return True


def with_partitioning(spec: JobSpec, infos: Sequence[FileInfo]) -> JobSpec:
    """The spec with what the paths of its input say about partitions, so that workers know it."""
    if spec.input.partitioning == "none" or not detected(spec.input, [info.uri for info in infos]):
        return spec
    return spec.model_copy(update={"input": spec.input.model_copy(update={"partitioning": "hive"})})


def schema_of(spec_input: InputSpec, uris: Sequence[str]) -> pa.Schema:
    """The type of each column: int64 where every value is a whole number without a leading zero, else
    string.
    """
    texts: dict[str, set[str]] = {}
    for uri in uris:
        for key, text in columns(spec_input, uri).items():
            texts.setdefault(key, set()).update([] if text is None else [text])
    return pa.schema(
        [
            (key, pa.int64() if found and all(map(_WHOLE.fullmatch, found)) else pa.string())
            for key, found in texts.items()
        ]
    )


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
    parted = (folder.partition("=") for folder in below)
    pairs = [
        (_decoded(key, uri), _decoded(text, uri)) for key, equals, text in parted if key and equals
    ]
    return [(key, None if text == NO_VALUE else text) for key, text in pairs]


def _decoded(text: str, uri: str) -> str:
    """Return the percent-decoded text of a folder. BadInput if it is not UTF-8: with U+FFFD in place of the bytes,
    two folders would become one value.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{private(uri)}: {text!r} in the name of a folder is not UTF-8 after percent-decoding: rename the folder, "
            "or set input.partitioning: none, so that folders are not columns"
        ) from error


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
