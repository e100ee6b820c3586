"""The manifest of a job as a table: a row for each live part, straight from the ledger."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv

from nightshift.common import provenance
from nightshift.common.errors import BadInput
from nightshift.common.formats.jsonl import jsonl
from nightshift.common.formats.parquet import parquet
from nightshift.common.ledger import Ledger, Row, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import manifest
from nightshift.common.storage import storage
from nightshift.producer.results import part_files

COLUMNS = pa.schema(
    [
        ("job", pa.int64()),
        ("job_name", pa.string()),
        ("model", pa.string()),
        ("revision", pa.string()),
        ("name", pa.string()),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
        ("rows_failed", pa.int64()),
        ("rows_open", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("seq", pa.int64()),
        ("batch", pa.int64()),
        ("attempt", pa.int64()),
        ("worker", pa.string()),
        ("engine", pa.string()),
        ("engine_version", pa.string()),
        ("code_version", pa.string()),
        ("claimed_at", pa.timestamp("us", "UTC")),
        ("ended_at", pa.timestamp("us", "UTC")),
        ("earlier_attempts", pa.string()),
    ]
)
"""See docs/provenance.md."""

Write = Callable[[Iterable[pa.RecordBatch], BinaryIO], object]


@dataclass(frozen=True, slots=True)
class ManifestTable:
    """What was written: parts, and how many rows of the job no part has yet."""

    parts: int
    rows_left: int


def write(ledger: Ledger, job: Job, to: str, *, force: bool = False) -> ManifestTable:
    """Writes the table to the file `to` (.parquet, .jsonl or .csv), page by page.

    Of a job that runs it has the parts that the ledger names at the moment. Raises BadInput for a
    place where it cannot be.
    """
    target = storage.resolve(to)
    writer = _writer(target)
    part_files.refuse_inside(job.output_uri, target)
    if storage.exists(target) and not force:
        raise BadInput(f"{target} exists: --force replaces it")
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
        revision = manifest.revision(connection, job.id)
    constant = {
        "job": job.id,
        "job_name": job.spec.name,
        "model": provenance.model_of(job.spec),
        "revision": revision,
    }
    parts = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal parts
        for page in part_files.manifest_pages(ledger, job):
            parts += len(page)
            yield pa.RecordBatch.from_pylist([_line(constant, row) for row in page], COLUMNS)

    storage.write_whole(target, lambda sink: writer(batches(), sink), replace=True)
    left = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
    return ManifestTable(parts, left)


def _line(constant: dict[str, Any], row: Row) -> dict[str, Any]:
    earlier = row["earlier_attempts"]
    text = None if earlier is None else json.dumps(earlier, ensure_ascii=False)
    return {**constant, **row, "earlier_attempts": text}


def _writer(target: str) -> Write:
    forms: dict[str, Write] = {
        ".parquet": lambda batches, sink: parquet.write(batches, COLUMNS, sink, {}),
        ".jsonl": jsonl.write,
        ".csv": _write_csv,
    }
    for suffix, write in forms.items():
        if target.lower().endswith(suffix):
            return write
    raise BadInput(f"{target} ends in none of {', '.join(forms)}: the suffix says the format")


def _write_csv(batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    with csv.CSVWriter(sink, COLUMNS) as writer:
        for batch in batches:
            writer.write_batch(batch)
