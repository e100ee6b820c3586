"""What pyiceberg reads, or refuses, and does not write: snapshots of an Iceberg table with delete files."""

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)
"""The columns of a position delete file, with the ids that the format reserves for them."""


def delete_positions(table: Table, positions: list[int]) -> None:
    """A snapshot that deletes rows of the one data file by their positions."""
    [task] = table.scan().plan_files()
    rows = {"file_path": [task.file.file_path] * len(positions), "pos": positions}
    _commit(table, pa.table(rows, POSITIONS), DataFileContent.POSITION_DELETES)


def delete_equal(table: Table, column: str, values: list[str]) -> None:
    """A snapshot that deletes rows by the values of a column."""
    field_id = table.schema().find_field(column).field_id
    schema = pa.schema([pa.field(column, pa.string(), True, {"PARQUET:field_id": str(field_id)})])
    file = pa.table({column: values}, schema)
    _commit(table, file, DataFileContent.EQUALITY_DELETES, equality_ids=[field_id])


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _commit(table: Table, rows: pa.Table, content: DataFileContent, **more: Any) -> None:
    location = f"{table.location()}/data/deletes-{uuid.uuid4()}.parquet"
    path = location.removeprefix("file://")
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=pq.read_metadata(path).serialized_size,
        **more,
    )
    file.spec_id = 0
    with table.transaction() as transaction:
        producer: Any = transaction.update_snapshot().fast_append()
        producer._operation = Operation.OVERWRITE
        producer.new_manifest_writer = lambda spec: _DeleteManifest(
            spec,
            producer.schema(),
            producer.new_manifest_output(),
            producer.snapshot_id,
            "gzip",
        )
        producer.append_data_file(file)
        producer.commit()
