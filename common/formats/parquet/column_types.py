"""Types of Parquet columns: canonical while rows are worked on, the file's own when they are
written again.

Files of one input may write the same values in different layouts (dictionaries, large strings), and
Arrow's kernels do not take all of them. So columns have canonical types in memory, and the metadata
of a field keeps the type that its column has in the file.
"""

import pyarrow as pa

from nightshift.common.formats.arrow_types import map_type, storable_type

WRITTEN = b"nightshift.written"
"""Key in a field's metadata: a serialized schema with one field, of the type in the file."""


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The type without layouts that only some writers choose: dictionaries, large types and views."""
    return map_type(kind, _canonical)


def _canonical(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.UuidType):
        # Python gets UUIDs from this type, and bytes from its storage.
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if types.is_dictionary(kind):
        return canonical_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    # Writers also choose the name of the items of a list.
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_type)
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_type, kind.list_size)
    return pa.map_(kind.key_type, kind.item_type) if types.is_map(kind) else kind


def input_field(name: str, kind: pa.DataType) -> pa.Field:
    """A column of an input whose files have this type: canonical, with the file's type as metadata."""
    canonical = pa.field(name, storable_type(canonical_type(kind)))
    return written_as(canonical, _written_type(kind))


def written_as(field: pa.Field, kind: pa.DataType) -> pa.Field:
    """The same column, which a part has under this type."""
    if field.type == kind:
        return pa.field(field.name, kind)
    kept = pa.schema([pa.field("", kind)]).serialize().to_pybytes()
    return pa.field(field.name, field.type, metadata={WRITTEN: kept})


def _written_type(kind: pa.DataType) -> pa.DataType:
    """The type as a part can have it.

    An index into a dictionary has 32 bits, since the dictionary of a part has the values of many
    row groups. Nested columns of only nulls become strings, since nothing can be cast to null, and so do
    objects without a key, which Parquet has not.
    """
    return kind if pa.types.is_null(kind) else map_type(kind, _writable)


def _writable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), kind.value_type)
    return storable_type(kind)


def written_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as the parts have them, without metadata: like the input's files, or like a table."""
    return pa.schema([pa.field(field.name, _type_in_file(field)) for field in schema])


def as_written(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table under the result of `written_schema` for its own schema."""
    if table.schema.types == schema.types:
        return table
    columns = [
        pa.chunked_array([pa.nulls(len(column))])
        if pa.types.is_null(field.type)
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _type_in_file(field: pa.Field) -> pa.DataType:
    kept = (field.metadata or {}).get(WRITTEN)
    return field.type if kept is None else pa.ipc.read_schema(pa.py_buffer(kept)).field(0).type
