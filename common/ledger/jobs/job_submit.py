"""Submit: the job row, its input files, its batches, in the transaction of the caller."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import text

from nightshift.common.descriptor import Descriptor, SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection, lift_time_limit
from nightshift.common.ledger.jobs.job_roots import UNBOUND, Admitted
from nightshift.common.public_text import private
from nightshift.common.spec import STORED, JobSpec
from nightshift.common.validation import first_mistake

INSERT_JOB = text("""
    INSERT INTO jobs (name, pool, priority, engine_key, spec, identity, spec_identity, output_uri,
                      max_parallel, max_failed_fraction, input_schema, output_schema, finish_by,
                      tenant, roots, uploads, outputs)
    VALUES (:name, :pool, :priority, :engine_key, CAST(:spec AS jsonb), :identity, :spec_identity,
            :output_uri, :max_parallel, :max_failed_fraction, :input_schema, :output_schema,
            :finish_by, :tenant, CAST(:roots AS text[]), :uploads, :outputs)
    ON CONFLICT DO NOTHING
    RETURNING id
""")
"""One job, running from now on; no row comes back where its identity or its output is taken."""

INSERT_FILES = text("""
    INSERT INTO input_files (job_id, file_index, uri, format, size, fingerprint, row_count,
                             first_row, arranged, rows_left_out)
    SELECT :job_id, :first_file + place - 1, uri, format, size, fingerprint, row_count, first_row,
           arranged, left_out
    FROM unnest(
        CAST(:uri AS text[]), CAST(:format AS text[]), CAST(:size AS bigint[]),
        CAST(:fingerprint AS text[]), CAST(:rows AS bigint[]), CAST(:first_row AS bigint[]),
        CAST(:arranged AS text[]), CAST(:left_out AS bigint[])
    ) WITH ORDINALITY
        AS file (uri, format, size, fingerprint, row_count, first_row, arranged, left_out, place)
""")
"""Input files of a job, in one statement: a hundred thousand single ones took 20 s."""

SUBMIT_LOCK = 0x7375626D
"""First half of the advisory lock of a submit ('subm'); the second half is a hash of the identity."""

OUTPUT_LOCK = 0x6F757470
"""The same of the lock of an output directory ('outp')."""

COPY_BATCHES = """
    COPY batches (job_id, seq, file_index, rows, row_count, locator_row, byte_offset, byte_length)
    FROM STDIN
"""
"""Batches that wait for admission."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to insert; `identity` hashes everything that makes it the same work. `finish_by` is the
    moment that limits.finish_by of the spec means, with its offset. `tenant` is who submits by HTTP,
    empty for the command line; `admitted` are the folders that the job is held to.
    """

    spec: JobSpec
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None
    finish_by: datetime | None = None
    tenant: str = ""
    admitted: Admitted = UNBOUND


def lock(connection: Connection, identity: str) -> None:
    """Takes the lock of a job's submit for this transaction: a submit of the same job waits here, and
    nobody takes over its output directory meanwhile.
    """
    statement = text("SELECT pg_advisory_xact_lock(:lock, hashtext(:identity))")
    connection.execute(statement, {"lock": SUBMIT_LOCK, "identity": identity})


def lock_output(connection: Connection, output_uri: str) -> None:
    """Takes the lock of an output directory for this transaction: what lies there for a job that is being
    stored stays, and nobody stores one whose copies are being removed. Taken after the lock of the job.
    """
    statement = text("SELECT pg_advisory_xact_lock(:lock, hashtext(:uri))")
    connection.execute(statement, {"lock": OUTPUT_LOCK, "uri": output_uri})


def try_lock(connection: Connection, identity: str) -> bool:
    """What `lock` does, but without waiting; False while another submit of that job is under way."""
    statement = text("SELECT pg_try_advisory_xact_lock(:lock, hashtext(:identity))")
    return bool(connection.scalar(statement, {"lock": SUBMIT_LOCK, "identity": identity}))


def insert(connection: Connection, new: NewJob, files: Sequence[SourceFile]) -> int:
    """The job row and its files; the batches follow in the same transaction.

    Raises BadInput for a spec that could not be read again.
    A second submit of the same identity or output waits here for the first one's COMMIT and then
    gets BadInput by the unique index (the caller looks the job up and hands it back).
    """
    spec = new.spec
    job_id = connection.scalar(
        INSERT_JOB,
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
            "finish_by": new.finish_by,
            "tenant": new.tenant,
            "roots": None if new.admitted.roots is None else list(new.admitted.roots),
            "uploads": new.admitted.uploads,
            "outputs": new.admitted.outputs,
        },
    )
    if job_id is None:
        raise BadInput(f"another job was submitted for {private(new.output_uri)} at the same time")
    insert_files(connection, job_id, files)
    return int(job_id)


def insert_files(
    connection: Connection, job_id: int, files: Sequence[SourceFile], first_file: int = 0
) -> None:
    """Input files of a job, numbered from `first_file` on."""
    names = ("uri", "format", "size", "fingerprint", "rows", "first_row", "arranged", "left_out")
    columns = {name: [getattr(file, name) for file in files] for name in names}
    connection.execute(INSERT_FILES, {"job_id": job_id, "first_file": first_file, **columns})


def insert_batches(
    connection: Connection,
    job_id: int,
    files: Sequence[SourceFile],
    batches: Iterable[Descriptor],
    *,
    first_file: int = 0,
    first_seq: int = 0,
) -> int:
    """Streams the batches in by COPY, in dataset order; returns how many. The first of `files` and
    the first batch have the numbers `first_file` and `first_seq` in the job.
    """
    lift_time_limit(connection)
    index_of = {file.uri: index for index, file in enumerate(files, first_file)}
    count = 0
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(COPY_BATCHES) as copy:
        for batch in batches:
            at = batch.locator
            copy.write_row(
                (
                    job_id,
                    first_seq + count,
                    index_of[batch.source.uri],
                    batch.rows,
                    len(batch.rows),
                    at and at.first_row,
                    at and at.byte_offset,
                    at and at.byte_length,
                )
            )
            count += 1
    return count


def _stored(spec: JobSpec) -> str:
    """The spec as JSON that can be read again: a copy of a spec is not validated when it is made.

    The deadline is a column of the job alone, which a person may change.
    """
    without = {"limits": {"finish_by"}}
    stored = spec.model_dump_json(by_alias=True, exclude=without, context=STORED)
    try:
        JobSpec.model_validate(json.loads(stored), context=STORED)
    except ValidationError as error:
        _, why = first_mistake(error)
        raise BadInput(f"the spec of {spec.name} could not be read again: {why}") from error
    return stored
