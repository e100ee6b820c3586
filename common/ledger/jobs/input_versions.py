"""Up to which version of its table a job has all rows that versions have added: it looks at later ones alone."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection


def get(connection: Connection, job_id: int) -> int | None:
    """The version; None where the job has taken no more than that of its submit."""
    statement = text("SELECT version FROM input_versions WHERE job_id = :id")
    found: int | None = connection.scalar(statement, {"id": job_id})
    return found


def put(connection: Connection, job_id: int, version: int) -> None:
    """Keeps the version."""
    statement = text("""
        INSERT INTO input_versions (job_id, version) VALUES (:id, :version)
        ON CONFLICT (job_id) DO UPDATE SET version = excluded.version
    """)
    connection.execute(statement, {"id": job_id, "version": version})
