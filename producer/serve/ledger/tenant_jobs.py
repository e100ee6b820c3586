"""Jobs as the HTTP API finds them: those of a tenant, or all for an operator."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job

OWNED = text("""
    SELECT id FROM jobs
    WHERE id = :id AND (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
""")
"""A job of a tenant."""

LISTED = text("""
    SELECT id FROM jobs
    WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant)
      AND (CAST(:state AS text) IS NULL OR state = :state)
      AND (CAST(:name AS text) IS NULL OR strpos(lower(name), lower(:name)) > 0) AND id < :before
    ORDER BY id DESC LIMIT :limit
""")
"""A page of the jobs of a tenant, the newest first."""

NAMES = text("""
    SELECT DISTINCT name FROM (
        SELECT name FROM jobs
        WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant ORDER BY id DESC LIMIT 1000
    ) AS newest ORDER BY name LIMIT :most
""")
"""Names of the newest jobs of a tenant."""

LAST = 2**63 - 1


def get(connection: Connection, tenant: str | None, job_id: int) -> Job | None:
    """A job of the tenant; of any with `tenant` None."""
    return jobs.get(connection, connection.scalar(OWNED, {"id": job_id, "tenant": tenant}))


def listed(
    connection: Connection,
    tenant: str | None,
    *,
    limit: int,
    before: int = LAST,
    state: str | None = None,
    name: str | None = None,
) -> list[int]:
    """Numbers of at most `limit` jobs before the job `before`, the newest first; those whose name has
    `name` in it, whatever the case.
    """
    given = {"tenant": tenant, "state": state, "before": before, "limit": limit, "name": name}
    return list(connection.scalars(LISTED, given))


def names(connection: Connection, tenant: str | None, most: int) -> list[str]:
    """At most `most` names of the newest jobs of the tenant, of all with `tenant` None."""
    return list(connection.scalars(NAMES, {"tenant": tenant, "most": most}))
