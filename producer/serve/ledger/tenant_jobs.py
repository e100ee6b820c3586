"""Jobs as the HTTP API finds them: those of a tenant, or all for an operator."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job

OWNED = text("""
    SELECT id FROM jobs
    WHERE id = :id AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
""")
"""A job of a tenant."""

NAMES = text("""
    SELECT DISTINCT name FROM (
        SELECT name FROM jobs
        WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant ORDER BY id DESC LIMIT 1000
    ) AS newest ORDER BY name LIMIT :most
""")
"""Names of the newest jobs of a tenant."""


def get(connection: Connection, tenant: str | None, job_id: int) -> Job | None:
    """A job of the tenant; of any with `tenant` None."""
    return jobs.get(connection, connection.scalar(OWNED, {"id": job_id, "tenant": tenant}))


def owner(connection: Connection, job_id: int) -> str | None:
    """The tenant of a job; None for a job of the command line."""
    return owners(connection, [job_id]).get(job_id)


def names(connection: Connection, tenant: str | None, most: int) -> list[str]:
    """At most `most` names of the newest jobs of the tenant, of all with `tenant` None."""
    return list(connection.scalars(NAMES, {"tenant": tenant, "most": most}))


def owners(connection: Connection, job_ids: Sequence[int]) -> dict[int, str]:
    """The tenants of these jobs, for an operator; jobs of the command line have none."""
    statement = text("""
        SELECT id, tenant FROM jobs WHERE id = ANY (CAST(:ids AS bigint[])) AND tenant <> ''
    """)
    return {row.id: row.tenant for row in connection.execute(statement, {"ids": list(job_ids)})}
