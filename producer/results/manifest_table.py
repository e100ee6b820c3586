"""The manifest of a job as a table: a row for each live part, straight from the ledger."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from nightshift.common import provenance, storage
from nightshift.common.descriptor import InputFormat
from nightshift.common.formats import part_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.producer.results import part_files, target_file

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

FORMATS: dict[str, InputFormat] = {".parquet": "parquet", ".jsonl": "jsonl", ".csv": "csv"}
"""Formats of the table by the suffix of its file."""


def write(ledger: Ledger, job: Job, to: str, *, force: bool = False) -> tuple[int, int]:
    """Writes the table to the file `to` (.parquet, .jsonl or .csv), page by page.

    Returns how many parts the table has, and how many rows of the job are in no part yet. The table
    of a running job has the parts that the ledger names now. Raises BadInput for a file that cannot
    be written.
    """
    target = storage.resolve(to)
    kind = FORMATS[target_file.suffix_of(target, FORMATS)]
    target_file.check(job, target, force=force)
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
        revision = live_parts.revision(connection, job.id)
    constant = {
        "job": job.id,
        "job_name": job.spec.name,
        "model": provenance.model_of(job.spec),
        "revision": revision,
    }
    parts = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal parts
        for page in part_files.pages_of(ledger, job, live_parts.entries_between):
            parts += len(page)
            yield pa.RecordBatch.from_pylist([_line(constant, entry) for entry in page], COLUMNS)

    part_rows.write_batches(target, batches(), COLUMNS, kind, {})
    left = progress["rows_total"] - progress["rows_done"] - progress["rows_failed"]
    return parts, left


def _line(constant: dict[str, Any], entry: str) -> dict[str, Any]:
    row = json.loads(entry)
    for column in ("claimed_at", "ended_at"):
        if column in row:
            row[column] = datetime.fromisoformat(row[column])
    if "earlier_attempts" in row:
        row["earlier_attempts"] = json.dumps(row["earlier_attempts"], ensure_ascii=False)
    return {**constant, **row}
