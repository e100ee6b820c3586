"""Parquet files whose footers make pyarrow end the process."""

import base64
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NUMBER = 0x1122334455667788

TABLE = pa.table({"id": pa.array([NUMBER] * 5), "text": ["a"] * 5, "tags": [["x"]] * 5})


def encrypted(path: Path, *columns: str) -> Path:
    """Writes a file with a footer in plain text and some columns encrypted."""
    from pyarrow.parquet import encryption

    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def __init__(self, _configuration: Any) -> None:
            super().__init__()

        def wrap_key(self, key_bytes: bytes, _name: str) -> str:
            return base64.b64encode(key_bytes).decode()

        def unwrap_key(self, wrapped: str, _name: str) -> bytes:
            return base64.b64decode(wrapped)

    configuration = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": list(columns)}, plaintext_footer=True
    )
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), configuration
    )
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    return path


def altered(path: Path, old: bytes, new: bytes) -> Path:
    """Writes a file of which some bytes of the footer are others."""
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, compression="none", use_dictionary=False, write_page_index=True)
    content = sink.getvalue()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    assert old in footer
    changed = footer.replace(old, new)
    path.write_bytes(
        content[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1"
    )
    return path
