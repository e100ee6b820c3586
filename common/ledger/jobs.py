"""Jobs: insert, find, pause, resume, cancel, fail, close."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import RowMapping, text

from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.ledger.batches.multirange import to_literal
from nightshift.common.ledger.connection import Connection, take_long
from nightshift.common.spec import STORED, JobSpec
from nightshift.common.states import JOB_MOVES, JobState

JUDGE_AFTER_ROWS = 200
"""Rows that must be over before a job's share of failed rows is judged."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the ledger knows it; `output_schema` is a serialized Arrow schema or None."""

    id: int
    state: JobState
    reason: str | None
    spec: JobSpec
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None
    created_at: datetime
    finished_at: datetime | None
    closed_at: datetime | None
    retries: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to insert; `identity` hashes everything that makes it the same work."""

    spec: JobSpec
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None


def insert(connection: Connection, new: NewJob, files: Sequence[SourceFile]) -> int:
    """The job row and its files; the batches follow in the same transaction.

    Raises BadInput for a spec that could not be read again.
    A second submit of the same identity or output waits here for the first one's COMMIT and then
    gets BadInput by the unique index (the caller looks the job up and hands it back).
    """
    spec = new.spec
    job_id = connection.scalar(
        text("""
            INSERT INTO jobs (name, pool, priority, engine_key, spec, identity, spec_identity,
                              output_uri, max_parallel, max_failed_fraction, input_schema,
                              output_schema)
            VALUES (:name, :pool, :priority, :engine_key, CAST(:spec AS jsonb), :identity,
                    :spec_identity, :output_uri, :max_parallel, :max_failed_fraction,
                    :input_schema, :output_schema)
            ON CONFLICT DO NOTHING
            RETURNING id
        """),
        {
            "name": spec.name,
            "pool": spec.pool,
            "priority": spec.priority,
            "engine_key": spec.engine_key,
            "spec": _stored(spec),
            "identity": new.identity,
            "spec_identity": new.spec_identity,
            "output_uri": new.output_uri,
            "max_parallel": spec.limits.max_parallel,
            "max_failed_fraction": spec.limits.max_failed_fraction,
            "input_schema": new.input_schema,
            "output_schema": new.output_schema,
        },
    )
    if job_id is None:
        raise BadInput(f"another job was submitted for {new.output_uri} at the same time")
    connection.execute(
        text("""
            INSERT INTO input_files (job_id, file_index, uri, format, size, fingerprint,
                                     row_count, first_row)
            VALUES (:job_id, :file_index, :uri, :format, :size, :fingerprint, :rows, :first_row)
        """),
        [
            {
                "job_id": job_id,
                "file_index": index,
                "uri": file.uri,
                "format": file.format,
                "size": file.size,
                "fingerprint": file.fingerprint,
                "rows": file.rows,
                "first_row": file.first_row,
            }
            for index, file in enumerate(files)
        ],
    )
    return int(job_id)


def _stored(spec: JobSpec) -> str:
    """The spec as JSON that `_job` reads: copies of a spec are not validated when they are made."""
    stored = spec.model_dump_json(by_alias=True, context=STORED)
    try:
        JobSpec.model_validate(json.loads(stored), context=STORED)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadInput(f"the spec of {spec.name} could not be read again: {why}") from error
    return stored


def insert_batches(
    connection: Connection,
    job_id: int,
    files: Sequence[SourceFile],
    batches: Iterable[Descriptor],
) -> int:
    """Streams the batches in by COPY, in dataset order; returns how many."""
    take_long(connection)
    index_of = {file.uri: index for index, file in enumerate(files)}
    count = 0
    driver = connection.connection.driver_connection
    assert driver is not None
    with (
        driver.cursor() as cursor,
        cursor.copy(
            "COPY batches (job_id, seq, file_index, rows, row_count, locator_row, byte_offset,"
            " byte_length) FROM STDIN"
        ) as copy,
    ):
        for batch in batches:
            at = batch.locator
            copy.write_row(
                (
                    job_id,
                    count,
                    index_of[batch.source.uri],
                    to_literal(batch.rows),
                    len(batch.rows),
                    at and at.first_row,
                    at and at.byte_offset,
                    at and at.byte_length,
                )
            )
            count += 1
    return count


SELECT_JOB = """
    SELECT id, state, reason, spec, identity, spec_identity, output_uri, input_schema,
           output_schema, created_at, finished_at, closed_at, retries
    FROM jobs
"""


def get(connection: Connection, job_id: int) -> Job | None:
    """The job with this number."""
    return _one(connection, "WHERE id = :value", job_id)


def by_output(connection: Connection, output_uri: str) -> Job | None:
    """The job that owns an output directory."""
    return _one(connection, "WHERE output_uri = :value", output_uri)


def find(connection: Connection, reference: str) -> Job:
    """The job that a user names: by number, else the newest of that name. BadInput if none."""
    if reference.isdigit() and len(reference) < 19:
        job = get(connection, int(reference))
    else:
        job = _one(connection, "WHERE name = :value ORDER BY id DESC LIMIT 1", reference)
    if job is None:
        raise BadInput(f"there is no job {reference!r} in the ledger; see `nightshift jobs`")
    return job


def files(connection: Connection, job_id: int) -> list[SourceFile]:
    """The input files of a job in dataset order."""
    found = connection.execute(
        text("""
            SELECT uri, format, size, fingerprint, row_count, first_row FROM input_files
            WHERE job_id = :job_id ORDER BY file_index
        """),
        {"job_id": job_id},
    )
    return [SourceFile(*row) for row in found]


def lock(connection: Connection, job_id: int) -> JobState:
    """Takes the job row FOR UPDATE: what pause, resume, cancel, retry and close begin with."""
    state = connection.scalar(
        text("SELECT state FROM jobs WHERE id = :id FOR UPDATE"), {"id": job_id}
    )
    return JobState(state)


def lock_shared(connection: Connection, job_id: int) -> JobState:
    """Takes the job row FOR SHARE: what every transaction that inserts batches begins with."""
    state = connection.scalar(
        text("SELECT state FROM jobs WHERE id = :id FOR SHARE"), {"id": job_id}
    )
    return JobState(state)


def try_lock_shared(connection: Connection, job_id: int) -> bool:
    """The same without waiting; False when somebody holds the row FOR UPDATE."""
    found = connection.scalar(
        text("SELECT id FROM jobs WHERE id = :id FOR SHARE SKIP LOCKED"), {"id": job_id}
    )
    return found is not None


def pause(connection: Connection, job_id: int, reason: str | None = None) -> None:
    """No further claims; what is leased runs on to its commit. BadInput when the job is over."""
    if lock(connection, job_id) is JobState.PAUSED:
        return
    _move(connection, job_id, JobState.PAUSED, reason)
    _unqueue(connection, job_id)


def resume(connection: Connection, job_id: int) -> None:
    """A paused job goes on; its share of failed rows is counted anew from here."""
    state = lock(connection, job_id)
    if state is JobState.RUNNING:
        return
    if state is not JobState.PAUSED:
        raise BadInput(f"job {job_id} is {state} and cannot be resumed")
    _move(connection, job_id, JobState.RUNNING)
    judge_anew(connection, job_id)


def judge_anew(connection: Connection, job_id: int) -> None:
    """Forgives the rows that failed so far when the share of failed rows is judged."""
    connection.execute(
        text("""
            UPDATE jobs SET judged_done = c.done, judged_failed = c.failed
            FROM (SELECT coalesce(sum(rows_done), 0) AS done,
                         coalesce(sum(rows_failed), 0) AS failed
                  FROM job_counters WHERE job_id = :id) AS c
            WHERE id = :id
        """),
        {"id": job_id},
    )


def cancel(connection: Connection, job_id: int) -> None:
    """Ends the job for good; workers drop its requests within a heartbeat. Final."""
    if lock(connection, job_id) is JobState.CANCELLED:
        return
    _move(connection, job_id, JobState.CANCELLED)
    _unqueue(connection, job_id)


def fail(connection: Connection, job_id: int, reason: str) -> None:
    """Ends the job as failed (its engine cannot be loaded)."""
    if lock(connection, job_id).over:
        return
    _move(connection, job_id, JobState.FAILED, reason)
    _unqueue(connection, job_id)


def reopen(connection: Connection, job_id: int) -> None:
    """A completed or failed job runs again (retry); its engine gets fresh tries from the caller.

    The caller makes batches pending and then calls judge_anew, which must not forgive rows that
    run again.
    """
    state = lock(connection, job_id)
    if state in (JobState.RUNNING, JobState.PAUSED):
        return
    _move(connection, job_id, JobState.RUNNING)
    connection.execute(
        text("""
            UPDATE jobs SET finished_at = NULL, closed_at = NULL, finisher = NULL,
                   finisher_until = NULL, reason = NULL WHERE id = :id
        """),
        {"id": job_id},
    )
    # While it was over nobody could commit, so finish may have swept the part of a late owner.
    connection.execute(
        text("""
            UPDATE batches SET owner = NULL WHERE id IN (
                SELECT id FROM batches WHERE job_id = :id AND state = 'pending'
                AND owner IS NOT NULL ORDER BY id FOR UPDATE)
        """),
        {"id": job_id},
    )


def judge_failures(connection: Connection, job_id: int) -> bool:
    """Pauses a running job whose share of failed rows is above its limit; True if it did."""
    verdict = connection.execute(
        text("""
            SELECT sum(c.rows_failed) - j.judged_failed AS failed,
                   sum(c.rows_done + c.rows_failed) - j.judged_done - j.judged_failed AS over,
                   j.max_failed_fraction AS allowed
            FROM jobs j JOIN job_counters c ON c.job_id = j.id
            WHERE j.id = :id AND j.state = 'running' GROUP BY j.id
        """),
        {"id": job_id},
    ).one_or_none()
    if verdict is None or verdict.over < JUDGE_AFTER_ROWS:
        return False
    if verdict.failed <= verdict.allowed * float(verdict.over):
        return False
    pause(
        connection,
        job_id,
        f"{verdict.failed} of the last {verdict.over} rows failed, more than "
        f"limits.max_failed_fraction {verdict.allowed:g} allows: see `nightshift errors {job_id}`, "
        f"then `nightshift resume {job_id}`",
    )
    return True


def fix_output_schema(connection: Connection, job_id: int, schema: bytes) -> bytes:
    """Sets the output schema if none is set (compare-and-set); returns the one that holds."""
    held = connection.scalar(
        text("""
            UPDATE jobs SET output_schema = coalesce(output_schema, :schema) WHERE id = :id
            RETURNING output_schema
        """),
        {"id": job_id, "schema": schema},
    )
    return bytes(held)


def listed(connection: Connection, limit: int = 1000) -> list[RowMapping]:
    """Rows of the view job_progress, newest job first."""
    found = connection.execute(
        text("SELECT * FROM job_progress ORDER BY job DESC LIMIT :limit"), {"limit": limit}
    )
    return list(found.mappings())


def progress(connection: Connection, job_id: int) -> RowMapping:
    """One row of the view job_progress."""
    found = connection.execute(text("SELECT * FROM job_progress WHERE job = :id"), {"id": job_id})
    return found.mappings().one()


def _one(connection: Connection, where: str, value: object) -> Job | None:
    found = connection.execute(text(SELECT_JOB + where), {"value": value}).mappings().one_or_none()
    return None if found is None else _job(found)


def _job(row: RowMapping) -> Job:
    values: dict[str, Any] = dict(row)
    values["state"] = JobState(values["state"])
    spec = values["spec"]
    values["spec"] = JobSpec.model_validate(
        json.loads(spec) if isinstance(spec, str) else spec, context=STORED
    )
    return Job(**values)


def _move(connection: Connection, job_id: int, to: JobState, reason: str | None = None) -> None:
    """The caller holds the job row FOR UPDATE."""
    state = JobState(
        connection.scalar(text("SELECT state FROM jobs WHERE id = :id"), {"id": job_id})
    )
    if to not in JOB_MOVES[state]:
        raise BadInput(f"job {job_id} is {state} and cannot become {to}")
    connection.execute(
        text("""
            UPDATE jobs SET state = :to, reason = :reason,
                   finished_at = CASE WHEN :over THEN now() END
            WHERE id = :id
        """),
        {"id": job_id, "to": to, "reason": reason, "over": to.over},
    )


def _unqueue(connection: Connection, job_id: int) -> None:
    connection.execute(
        text("""
            UPDATE batches SET state = 'pending', rank = NULL
            WHERE id IN (SELECT id FROM batches WHERE job_id = :id AND state = 'queued'
                         ORDER BY id FOR UPDATE)
              AND state = 'queued'
        """),
        {"id": job_id},
    )
