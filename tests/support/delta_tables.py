"""What delta-rs reads and does not write: versions of a Delta table with deletion vectors and mapped columns."""

import json
import struct
import uuid
import zlib
from base64 import b85encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.producer.tables.delta_log import RFC_1924, Z85

VECTORS = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


def log_file(root: Path, version: int) -> Path:
    """Where the actions of a version stand."""
    return root / "_delta_log" / f"{version:020}.json"


def actions(root: Path, version: int) -> list[dict[str, Any]]:
    """The actions of a version."""
    return [json.loads(line) for line in log_file(root, version).read_text().splitlines()]


def commit(root: Path, *added: dict[str, Any]) -> int:
    """Writes the next version by hand; returns its number."""
    folder = root / "_delta_log"
    folder.mkdir(parents=True, exist_ok=True)
    version = len(list(folder.glob("*.json")))
    info = {"commitInfo": {"timestamp": 1, "operation": "BY HAND", "operationParameters": {}}}
    log_file(root, version).write_text("".join(f"{json.dumps(each)}\n" for each in (info, *added)))
    return version


def added(root: Path, path: str, **more: Any) -> dict[str, Any]:
    """The action that adds a file of the table."""
    size = (root / path).stat().st_size
    rows = pq.read_metadata(root / path).num_rows
    about = {"path": path, "size": size, "partitionValues": {}, "modificationTime": 1}
    return {"add": {**about, "dataChange": True, "stats": json.dumps({"numRecords": rows}), **more}}


def removed(path: str) -> dict[str, Any]:
    """The action that takes a file away."""
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}


def delete_by_vector(root: Path, rows: Sequence[int], vector: dict[str, Any] | None = None) -> int:
    """A version that deletes rows of the one file of version 0, by a vector in a file of its own unless another
    `vector` is given.
    """
    [path] = [each["add"]["path"] for each in actions(root, 0) if "add" in each]
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **VECTORS}}
    vector = vector or _stored_vector(root, rows)
    return commit(root, protocol, removed(path), added(root, path, deletionVector=vector))


def absolute_vector(file: Path, rows: Sequence[int]) -> dict[str, Any]:
    """A vector in a file anywhere."""
    data = _bitmap(rows)
    file.write_bytes(_framed(data))
    facts = {"offset": 1, "sizeInBytes": len(data), "cardinality": len(rows)}
    return {"storageType": "p", "pathOrInlineDv": f"file://{file}", **facts}


def mapped_table(root: Path, rows: pa.Table) -> None:
    """A table whose columns have other names in its file."""
    root.mkdir(parents=True)
    names = [f"col-{number}" for number in range(rows.num_columns)]
    pq.write_table(rows.rename_columns(names), root / "rows.parquet")
    fields = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number + 1,
                "delta.columnMapping.physicalName": names[number],
            },
        }
        for number, name in enumerate(rows.column_names)
    ]
    features = ["columnMapping"]
    commit(
        root,
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {
                    "delta.columnMapping.mode": "name",
                    "delta.columnMapping.maxColumnId": str(len(names)),
                },
                "createdTime": 1,
            }
        },
        added(root, "rows.parquet"),
    )


def _stored_vector(root: Path, rows: Sequence[int]) -> dict[str, Any]:
    name, data = uuid.uuid4(), _bitmap(rows)
    (root / f"deletion_vector_{name}.bin").write_bytes(_framed(data))
    digits = b85encode(name.bytes).decode().translate(str.maketrans(RFC_1924, Z85))
    facts = {"offset": 1, "sizeInBytes": len(data), "cardinality": len(rows)}
    return {"storageType": "u", "pathOrInlineDv": digits, **facts}


def _framed(data: bytes) -> bytes:
    """A file of vectors: its version, then the length of the vector, the vector and its checksum."""
    return b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def _bitmap(rows: Sequence[int]) -> bytes:
    """A RoaringBitmapArray of numbers below 65,536 (Delta protocol, Deletion Vector Format)."""
    values = sorted(rows)
    header = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16)
    bitmap = header + struct.pack(f"<{len(values)}H", *values)
    return struct.pack("<IqI", 1681511377, 1, 0) + bitmap
