"""Which table a job reads, and up to which version the job has all rows that versions have added: it looks at later
ones alone.
"""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection


def get(connection: Connection, job_id: int) -> tuple[int, str] | None:
    """The version, and the id of the table; None for a job that reads none."""
    statement = text("SELECT version, table_id FROM input_versions WHERE job_id = :id")
    found = connection.execute(statement, {"id": job_id}).one_or_none()
    return None if found is None else (found.version, found.table_id)


def note(connection: Connection, job_id: int, version: int, table_id: str) -> None:
    """Keeps which table a new job reads, and its version."""
    statement = text("""
        INSERT INTO input_versions (job_id, version, table_id) VALUES (:id, :version, :table_id)
    """)
    connection.execute(statement, {"id": job_id, "version": version, "table_id": table_id})


def put(connection: Connection, job_id: int, version: int) -> None:
    """Keeps a later version."""
    statement = text("UPDATE input_versions SET version = :version WHERE job_id = :id")
    connection.execute(statement, {"id": job_id, "version": version})
