"""Types of Parquet columns: plain ones while rows are worked on, the file's own when they are
written again.

Files of one input may write the same values in different layouts (dictionaries, large strings), and
Arrow's kernels do not take all of them. So columns are plain in memory, and a field's metadata
remembers how its column was written.
"""

import pyarrow as pa

from nightshift.common.formats.arrow_types import map_type
from nightshift.common.formats.jsonl.json_types import storable_type

WRITTEN = b"nightshift.written"
"""Key in a field's metadata: a serialized schema with one field, of the type in the file."""


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The type without what only some writers choose: dictionaries, large and view layouts."""
    return map_type(kind, _plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.UuidType):
        # Its values are UUIDs in Python; those of its storage are bytes.
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if types.is_dictionary(kind):
        return canonical_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    # Writers also choose how they call the items of a list.
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_type)
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_type, kind.list_size)
    return pa.map_(kind.key_type, kind.item_type) if types.is_map(kind) else kind


def input_field(name: str, kind: pa.DataType) -> pa.Field:
    """A column of an input whose files have this type: plain, with the memory of its own type."""
    plain, written = storable_type(canonical_type(kind)), _written_type(kind)
    if plain == written:
        return pa.field(name, plain)
    memory = pa.schema([pa.field("", written)]).serialize().to_pybytes()
    return pa.field(name, plain, metadata={WRITTEN: memory})


def _written_type(kind: pa.DataType) -> pa.DataType:
    """The type with 32 bits for an index into a dictionary, since a part's has the values of many
    row groups, and without nested columns of only nulls, which nothing can be cast to.
    """
    return kind if pa.types.is_null(kind) else map_type(kind, _writable)


def _writable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), kind.value_type)
    return pa.string() if pa.types.is_null(kind) else kind


def written_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as the input's files had them, without metadata."""
    return pa.schema([pa.field(field.name, _remembered(field)) for field in schema])


def as_written(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table under a schema that `written_schema` made of its own."""
    if table.schema.types == schema.types:
        return table
    columns = [
        pa.chunked_array([pa.nulls(len(column))])
        if pa.types.is_null(field.type)
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _remembered(field: pa.Field) -> pa.DataType:
    memory = (field.metadata or {}).get(WRITTEN)
    return field.type if memory is None else pa.ipc.read_schema(pa.py_buffer(memory)).field(0).type
