"""Finish: error parts for dead batches, parts moved to their place, the manifest, the job closed.

Every step is harmless when it is done twice, by the same reaper or by two at once.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from nightshift.common import provenance
from nightshift.common.descriptor import Descriptor
from nightshift.common.errors import NightshiftError, Permanent, Retryable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import dataset, output_parts, registry
from nightshift.common.ledger import Ledger, Row, jobs
from nightshift.common.ledger.batches import commits, records, retries
from nightshift.common.ledger.batches.multirange import from_multirange
from nightshift.common.ledger.batches.records import Part
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import manifest
from nightshift.common.row_errors import Failure
from nightshift.common.states import JobState, RowErrorKind
from nightshift.common.storage import storage
from nightshift.producer.results import part_files
from nightshift.producer.submit import convert

log = structlog.get_logger(__name__)

DEAD_BATCHES_A_ROUND = 100

MANIFEST_TRIES = 3
"""How often a late reaper writes a manifest anew because it met one of a later end."""


def finish(ledger: Ledger, job_id: int, roots: Sequence[str] = ()) -> None:
    """Brings a job whose batches are all over to its end; returns early if it is not over yet.

    What can never work, an error of our own included, ends the job as failed, with the reason and
    without a manifest; so does an output outside `roots`, where there are some. Raises Retryable
    on outages: finish is tried again.
    """
    try:
        _finish(ledger, job_id, roots)
    except Retryable:
        raise
    except Exception as error:
        with ledger.transaction() as connection:
            given_up = jobs.abandon(
                connection, job_id, f"its output could not be finished: {error}"
            )
        log.exception("job_abandoned" if given_up else "finish_failed", job_id=job_id)


def _finish(ledger: Ledger, job_id: int, roots: Sequence[str]) -> None:
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    if job is None or job.closed_at is not None:
        return
    storage.check_roots([job.output_uri], roots)
    with ledger.transaction() as connection:
        retries.undo(connection, job_id)
    _bury_dead(ledger, job)
    _complete_columns(ledger, job)
    _move_staged(ledger, job)
    reached(Moment.FINISHING)
    # Before the job is closed: nobody comes back for a closed one.
    if not _sweep(ledger, job):
        return
    _sweep_copies(ledger, job)
    reached(Moment.CLOSING)
    state = _close(ledger, job)
    if state is not None:
        log.info("job_closed", job_id=job_id, state=str(state))


def _close(ledger: Ledger, job: Job) -> JobState | None:
    """Manifest, then the job closed as the manifest says; None when that is for a later round."""
    for _ in range(MANIFEST_TRIES):
        said, retried = _write_manifest(ledger, job)
        with ledger.transaction() as connection:
            end = jobs.open_work(connection, job.id).end
            now = jobs.get(connection, job.id)
            fits = now is not None and (end, now.retries) == (said, retried)
            if end is None:
                # A retry came in between. Under the job's lock, so that no later end loses its own.
                storage.delete(output_parts.final(job.output_uri, output_parts.MANIFEST))
            elif fits:
                jobs.close(connection, job.id)
        if fits:
            return end
        if now is None or now.closed_at is None:
            return None
        # We were frozen, and ours lies over the manifest of a later end: written anew.
    return None


def _bury_dead(ledger: Ledger, job: Job) -> None:
    """An error part for each dead batch, so that output rows equal input rows."""
    while True:
        with ledger.transaction() as connection:
            dead = commits.dead(connection, job.id, DEAD_BATCHES_A_ROUND)
        if not dead:
            return
        for row in dead:
            part = _error_part(job, row)
            with ledger.transaction() as connection:
                commits.bury(connection, row, part)


def _error_part(job: Job, row: Row) -> Part:
    """Every row of the batch that has no answer of an earlier part carries the batch's error."""
    place = records.descriptor(row)
    todo = place.rows if row["redo"] is None else from_multirange(row["redo"])
    failure = Failure.of(RowErrorKind.BATCH_DEAD, row["last_error"] or "the batch is dead")
    table = output_parts.failures_table(
        part_files.schema_of(job),
        list(todo),
        _passed(job, replace(place, rows=todo)),
        failure,
    )
    made_by = provenance.of_job(job.id, job.spec)
    made_by |= {"batch": str(row["id"]), "attempt": str(row["attempt"])}
    if row["part_name"] is not None:
        kept = part_files.provenance_of(job, row["part_name"])
        made_by = provenance.with_kept(made_by, todo, kept)
        old = part_files.read(job, row["part_name"])
        redone = pc.is_in(old.column("row_index"), table.column("row_index").combine_chunks())
        table = pa.concat_tables([table, old.filter(pc.invert(redone))]).sort_by("row_index")
    name = _fresh(
        output_parts.part_name(
            row["seq"],
            None if row["parent_id"] is None else row["id"],
            row["attempt"],
            job.spec.output.format,
            bare=job.output_schema is None,
        )
    )
    facts = registry.write_part(
        output_parts.staged(job.output_uri, name),
        table,
        job.spec.output.format,
        made_by,
    )
    return Part(
        name,
        facts.bytes,
        facts.checksum,
        output_parts.column_sum(table, "prompt_tokens"),
        output_parts.column_sum(table, "output_tokens"),
        output_parts.row_errors(table, job.spec.input.id),
    )


def _passed(job: Job, place: Descriptor) -> pa.Table | None:
    """The id and pass-through columns of a dead batch, if its source can still be read."""
    try:
        rows = dataset.read_rows(
            job.spec,
            place,
            job.spec.passed_columns,
            registry.ReadCache(0),
            part_files.input_schema(job),
        )
    except NightshiftError as error:
        log.warning("dead_source_unreadable", job_id=job.id, error=str(error))
        return None
    table = pa.concat_tables([rows.table, rows.bad_table])
    order = pa.array([*rows.row_index, *rows.bad], pa.int64())
    return table.take(pc.sort_indices(order))


def _complete_columns(ledger: Ledger, job: Job) -> None:
    """Parts that were written before the answers' columns were known get them.

    A reader of the directory takes the columns of the first part for those of all.
    """
    if job.output_schema is None or not job.spec.task.has_open_columns:
        return
    for name, batch in part_files.names(ledger, job):
        if output_parts.is_bare(name):
            _complete(ledger, job, name, batch)


def _complete(ledger: Ledger, job: Job, bare: str, batch: int) -> None:
    kind = job.spec.output.format
    uri = part_files.place(job, bare)
    name = _fresh(bare.replace(output_parts.BARE, ""))
    facts = registry.write_part(
        output_parts.staged(job.output_uri, name),
        part_files.read_at(job, bare, uri),
        kind,
        part_files.provenance_of(job, bare),
    )
    with ledger.transaction() as connection:
        commits.rename_part(connection, batch, bare, name, facts.bytes, facts.checksum)


def _move_staged(ledger: Ledger, job: Job) -> None:
    """Moves the named parts that a dead worker left in the staging folder."""
    staged = set(storage.list_names(output_parts.staged(job.output_uri, "")))
    if not staged:
        return
    for name, _ in part_files.names(ledger, job):
        if name in staged:
            storage.move(
                output_parts.staged(job.output_uri, name), output_parts.final(job.output_uri, name)
            )


def _write_manifest(ledger: Ledger, job: Job) -> tuple[JobState, int]:
    """Streams the manifest: a job may have a million parts. Returns the end that it names, and the
    job's count of retries when it was begun.
    """
    # Read again: it may have been cancelled since finish began, also while we were frozen.
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
    facts = _manifest_head(ledger, job)

    def write(sink: BinaryIO) -> None:
        head = json.dumps(facts, indent=1, ensure_ascii=False)
        sink.write(head.removesuffix("\n}").encode() + b',\n "parts": [')
        separator = b"\n  "
        for entry in part_files.manifest_entries(ledger, job):
            sink.write(separator + entry.encode())
            separator = b",\n  "
        sink.write(b"\n ]\n}\n")

    storage.write_whole(
        output_parts.final(job.output_uri, output_parts.MANIFEST), write, replace=True
    )
    return JobState(str(facts["status"])), job.retries


def _manifest_head(ledger: Ledger, job: Job) -> dict[str, object]:
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
        files = jobs.files(connection, job.id)
        revision = manifest.revision(connection, job.id)
        makers = manifest.makers(connection, job.id)
    over = progress["rows_done"] + progress["rows_failed"]
    return {
        "job": job.id,
        "name": job.spec.name,
        "status": str(_end(job, progress)),
        "complete": over == progress["rows_total"],
        "rows": over,
        "rows_total": progress["rows_total"],
        "rows_failed": progress["rows_failed"],
        "prompt_tokens": progress["prompt_tokens"],
        "output_tokens": progress["output_tokens"],
        "created_at": job.created_at.isoformat(),
        "code_version": provenance.code_version(),
        "model": provenance.model_of(job.spec),
        "revision": revision,
        "engines": [dict(maker) for maker in makers],
        "format": job.spec.output.format,
        "spec": job.spec.model_dump(mode="json", by_alias=True),
        "schema": [
            {"name": field.name, "type": str(field.type)} for field in part_files.schema_of(job)
        ],
        "input_files": [
            {
                "uri": file.uri,
                "bytes": file.size,
                "fingerprint": file.fingerprint,
                "rows": file.rows,
            }
            for file in files
        ],
    }


def _end(job: Job, progress: Row) -> JobState:
    """The state that close will give the job."""
    if job.state.over:
        return job.state
    return JobState.FAILED if progress["batches_dead"] else JobState.COMPLETED


def _sweep(ledger: Ledger, job: Job) -> bool:
    """Removes what no live part needs: first list, then ask the ledger, never the other way.

    What is listed while no attempt may commit any more, and is not live then, will never be live:
    names are never used again, and a retry takes the batches from their owners. False when a retry
    has opened the job again: its part may lie in the staging folder, waiting for its COMMIT.
    Raises Permanent when a live part is not there: such a job is not complete.
    """
    staged = storage.list_names(output_parts.staged(job.output_uri, ""))
    finished = storage.list_names(job.output_uri)
    reached(Moment.SWEEPING)
    with ledger.transaction() as connection:
        if jobs.open_work(connection, job.id).may_commit:
            return False
    live = {name for name, _ in part_files.names(ledger, job)}
    missing = {
        name
        for name in live.difference(finished)
        if output_parts.located(job.output_uri, name) is None
    }
    if missing:
        raise Permanent(
            f"{len(missing)} parts that the ledger names are not in {job.output_uri}, one is "
            f"{min(missing)}: see `nightshift verify {job.id}`"
        )
    for name in set(staged) - live:
        storage.delete(output_parts.staged(job.output_uri, name))
    for name in set(finished) - live:
        if name.startswith("part-"):
            storage.delete(output_parts.final(job.output_uri, name))
    storage.remove_directory(output_parts.staged(job.output_uri, ""))
    return True


def _sweep_copies(ledger: Ledger, job: Job) -> None:
    """Leaves the copies that the job reads: a retry wants them."""
    with ledger.transaction() as connection:
        files = jobs.files(connection, job.id)
    copies = (dataset.copy_of(job.spec.input, job.output_uri, file) for file in files)
    convert.sweep(job.output_uri, {uri for uri in copies if uri is not None})


def _fresh(name: str) -> str:
    """A name that no other reaper gives to the same rows: a part is never written over."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{secrets.token_hex(3)}.{suffix}"
