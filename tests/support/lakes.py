"""Parts as tables of both formats, in a folder, and what each reader of tables makes of them."""

import datetime as dt
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyiceberg.catalog import load_catalog

Readers = dict[str, Callable[[], pa.Table]]


def table_of(kind: str, folder: Path, schema: pa.Schema, parts: Sequence[str]) -> Readers:
    """A new table of the format and of this schema, with these parts of `folder`; its readers by name."""
    return _delta(folder, schema, parts) if kind == "delta" else _iceberg(folder, schema, parts)


def _delta(folder: Path, schema: pa.Schema, parts: Sequence[str]) -> Readers:
    actions = [
        AddAction(
            part,
            (folder / part).stat().st_size,
            {},
            0,
            True,
            json.dumps({"numRecords": pq.read_metadata(folder / part).num_rows}),
        )
        for part in parts
    ]
    create_table_with_add_actions(str(folder), Schema.from_arrow(schema), actions)
    table = DeltaTable(str(folder))
    return {
        "to_pyarrow_table": table.to_pyarrow_table,
        "scan": lambda: pa.table(table.scan().read_all()),
        "DuckDB": lambda: _through_duckdb(table.to_pyarrow_dataset()),
    }


def _iceberg(folder: Path, schema: pa.Schema, parts: Sequence[str]) -> Readers:
    catalog = load_catalog(
        "test", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake"
    )
    catalog.create_namespace("space")
    table = catalog.create_table("space.rows", schema=schema)
    table.add_files([f"file://{folder}/{part}" for part in parts])
    return {
        "scan": lambda: table.scan().to_arrow(),
        "DuckDB": lambda: table.scan().to_duckdb("t").sql("SELECT * FROM t").to_arrow_table(),
    }


def _through_duckdb(source: Any) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("source", source)
        return connection.sql("SELECT * FROM source").to_arrow_table()


def values(column: pa.ChunkedArray) -> list[Any]:
    """The values as each reader has them: moments in UTC, UUIDs as text, NaN equal to NaN."""
    return [_plain(value) for value in column.to_pylist()]


def blurred(found: Any) -> Any:
    """The same with null for what is empty: pyiceberg 0.12 reads a null list or map of structs as an empty
    one, and its file has null.
    """
    if isinstance(found, list):
        return [blurred(each) for each in found] or None
    if isinstance(found, dict):
        return {key: blurred(each) for key, each in found.items()}
    return found


def _plain(value: Any) -> Any:
    match value:
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case float():
            return repr(value)
        case uuid.UUID():
            return str(value)
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC).isoformat()
    return value
