"""Error parts: every row of a dead batch that has no answer gets a row with the batch's error, so
that output rows equal input rows.
"""

import pyarrow as pa
import structlog

from nightshift.common import provenance
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import NightshiftError
from nightshift.common.formats import part_names, part_rows
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.batches import failures
from nightshift.common.ledger.batches.records import Part
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.row_errors import Failure
from nightshift.common.states import RowErrorKind
from nightshift.producer.reaper import output_directory
from nightshift.producer.results import part_files

log = structlog.get_logger(__name__)

DEAD_BATCHES_A_ROUND = 100


def write_all(ledger: Ledger, job: Job) -> None:
    """Writes an error part for each dead batch that has none, and names it in the ledger."""
    while True:
        with ledger.transaction() as connection:
            dead = failures.missing_error_parts(connection, job.id, DEAD_BATCHES_A_ROUND)
        if not dead:
            return
        for batch in dead:
            part = _write(job, batch)
            with ledger.transaction() as connection:
                failures.name_error_part(connection, batch, part)


def _write(job: Job, batch: Row) -> Part:
    """Rows that an earlier part has an answer for keep it."""
    failed = batch["rows"] if batch["redo"] is None else batch["redo"]
    table = part_rows.failures_table(
        part_files.schema_of(job),
        list(failed),
        _passed_columns(job, batch, failed),
        Failure.of(RowErrorKind.BATCH_DEAD, batch["last_error"] or "the batch is dead"),
    )
    made_by = provenance.of_job(job.id, job.spec)
    made_by |= {"batch": str(batch["id"]), "attempt": str(batch["attempt"])}
    if batch["part_name"] is not None:
        uri = part_files.place(job, batch["part_name"])
        parts = part_files.store(job)
        table, made_by = parts.merge(table, made_by, failed, batch["part_name"], uri)
    name = part_names.part_name(
        batch["seq"],
        batch["id"],
        batch["attempt"],
        job.spec.output.format,
        bare=job.output_schema is None,
    )
    name, facts = output_directory.write(job, name, table, made_by)
    return Part(
        name,
        facts.bytes,
        facts.checksum,
        part_rows.column_sum(table, "prompt_tokens"),
        part_rows.column_sum(table, "output_tokens"),
        part_rows.row_errors(table, job.spec.input.id),
    )


def _passed_columns(job: Job, batch: Row, failed: RowRanges) -> pa.Table | None:
    """The id and pass-through columns of these rows, if their source can still be read."""
    try:
        rows = part_files.read_input(job, batch, failed, job.spec.passed_columns)
    except NightshiftError as error:
        log.warning("dead_source_unreadable", job_id=job.id, error=str(error))
        return None
    return rows.whole()
