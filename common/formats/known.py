"""The formats of files, and whether a file begins as one of its format does."""

from collections.abc import Mapping
from typing import Final

from nightshift.common import storage
from nightshift.common.descriptor import InputFormat
from nightshift.common.errors import BadInput
from nightshift.common.formats.csv import examine as csv_examine
from nightshift.common.formats.csv import plan as csv_plan
from nightshift.common.formats.csv import read as csv_read
from nightshift.common.formats.csv import write as csv_write
from nightshift.common.formats.format import Format
from nightshift.common.formats.jsonl import examine as jsonl_examine
from nightshift.common.formats.jsonl import openai_batch
from nightshift.common.formats.jsonl import plan as jsonl_plan
from nightshift.common.formats.jsonl import read as jsonl_read
from nightshift.common.formats.jsonl import write as jsonl_write
from nightshift.common.formats.parquet import examine as parquet_examine
from nightshift.common.formats.parquet import read as parquet_read
from nightshift.common.formats.parquet import write as parquet_write
from nightshift.common.formats.source_files import compression
from nightshift.common.public_text import private
from nightshift.common.storage import FileInfo

FORMATS: Final[Mapping[InputFormat, Format]] = {
    "parquet": Format(
        "Parquet",
        parquet_examine.examine,
        parquet_read.read,
        parquet_write.written,
        magic=b"PAR1",
        says_types=True,
        says_columns=True,
        part_batches=parquet_read.part_batches,
        part_metadata=parquet_read.part_metadata,
    ),
    "jsonl": Format(
        "JSONL",
        jsonl_examine.examine,
        jsonl_read.read,
        jsonl_write.written,
        copy=jsonl_plan.copy,
        copy_suffix="jsonl",
        may_have_more=True,
        part_batches=jsonl_read.part_batches,
    ),
    "csv": Format(
        "CSV",
        csv_examine.examine,
        csv_read.read,
        csv_write.written,
        copy=csv_plan.copy,
        copy_suffix="parquet",
        is_copied=True,
        says_columns=True,
    ),
    # Copied by whoever plans, since the libraries of tables are not needed to read the copy.
    "table": Format(
        "Parquet",
        lambda _, copy, wanted, limit: parquet_examine.examine(copy, copy, wanted, limit),
        parquet_read.read,
        parquet_write.written,
        copy_suffix="parquet",
        is_copied=True,
        says_types=True,
        says_columns=True,
    ),
    "openai": Format(
        "JSONL",
        jsonl_examine.examine_requests,
        openai_batch.read,
        openai_batch.written,
        copy=jsonl_plan.copy,
        copy_suffix="openai",
    ),
}


ENCRYPTED_PARQUET = b"PARE"
"""First bytes of a Parquet file whose footer is encrypted."""

_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file, whose name would end in .gz",
    b"\x28\xb5\x2f\xfd": "a zstd file, whose name would end in .zst",
    b"PK\x03\x04": "a zip file, which is not supported",
}


def check_content(info: FileInfo, kind: InputFormat) -> None:
    """BadInput when the first bytes of a file are not of this format."""
    if kind == "table":
        return  # whoever copies it reads its files
    known = FORMATS[kind]
    if info.size == 0:
        if known.magic:
            raise BadInput(
                f"{private(info.uri)} is empty (0 bytes), so it is not a {known.title} file"
            )
        return
    start = storage.read_range(info.uri, 0, 4)
    looks = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if not start.startswith(known.magic):
        if start == ENCRYPTED_PARQUET:
            raise BadInput(
                f"the footer of {private(info.uri)} is encrypted: encrypted Parquet is not supported"
            )
        raise BadInput(
            f"{private(info.uri)} is not a {known.title} file but {looks or 'something else'}"
        )
    if not known.magic and looks is not None and compression(info.uri) is None:
        raise BadInput(f"{private(info.uri)} is not a {known.title} file but {looks}")


def is_streamed(uri: str, kind: InputFormat) -> bool:
    """True for a file that can only be read from its start; such a file needs a copy."""
    return FORMATS[kind].is_copied or compression(uri) is not None
