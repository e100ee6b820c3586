"""Reading jobs: by number, by output, by what a user typed; their input files and progress."""

from sqlalchemy import RowMapping, text

from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs.records import Job, job_of

SELECT_JOB = text("""
    SELECT id, state, reason, spec, identity, spec_identity, output_uri, input_schema,
           output_schema, created_at, finished_at, closed_at, retries
    FROM jobs WHERE id = :id
""")
"""One job with all that `Job` has."""


def get(connection: Connection, job_id: int | None) -> Job | None:
    """The job with this number."""
    found = connection.execute(SELECT_JOB, {"id": job_id}).mappings().one_or_none()
    return None if found is None else job_of(found)


def by_output(connection: Connection, output_uri: str) -> Job | None:
    """The job that owns an output directory."""
    owner = text("SELECT id FROM jobs WHERE output_uri = :output_uri")
    return get(connection, connection.scalar(owner, {"output_uri": output_uri}))


def find(connection: Connection, reference: str) -> Job:
    """The job that a user names: by number, else the newest of that name. BadInput if none."""
    if reference.isdigit() and len(reference) < 19:
        job = get(connection, int(reference))
    else:
        newest = text("SELECT id FROM jobs WHERE name = :name ORDER BY id DESC LIMIT 1")
        job = get(connection, connection.scalar(newest, {"name": reference}))
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
