"""What the jobs of a tenant have cost together since its budget began.

The row of a tenant has the costs of closed jobs, also of those that were deleted since; what open jobs
cost is added when somebody asks.
"""

from decimal import Decimal

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.text import money

COUNT = text("""
    WITH due AS MATERIALIZED (
        SELECT j.tenant, k.cost, k.cost - j.counted_cost AS more
        FROM jobs j JOIN job_costs k ON k.job = j.id
        WHERE j.id = :id AND j.tenant <> '' AND k.cost IS NOT NULL
    ), counted AS (
        UPDATE jobs SET counted_cost = due.cost FROM due WHERE id = :id
    )
    UPDATE tenants t SET spent = t.spent + due.more FROM due WHERE t.name = due.tenant
""")
"""Adds to the tenant of a job what the job has cost since it was added last."""

BEGIN = text("""
    UPDATE tenants t SET budget_from = now(), spent = -coalesce((
        SELECT sum(k.cost - j.counted_cost) FROM jobs j JOIN job_costs k ON k.job = j.id
        WHERE j.tenant = t.name AND j.tenant <> '' AND j.closed_at IS NULL), 0)
    WHERE t.name = :name
""")
"""Counts what the jobs of a tenant cost from now on."""

SPENT = text("""
    SELECT t.name, t.budget, t.spent + coalesce((
        SELECT sum(k.cost - j.counted_cost) FROM jobs j JOIN job_costs k ON k.job = j.id
        WHERE j.tenant = t.name AND j.tenant <> '' AND j.closed_at IS NULL), 0) AS spent
    FROM tenants t
    WHERE t.budget IS NOT NULL AND (CAST(:name AS text) IS NULL OR t.name = :name)
""")
"""What tenants with a budget have spent: one of them, or all."""

RUNNING = text("SELECT id FROM jobs WHERE tenant = :name AND tenant <> '' AND state = 'running'")
"""Running jobs of a tenant."""


def count(connection: Connection, job_id: int) -> None:
    """Adds the cost of a job that ends to its tenant, if it has one; what was added before is not
    added again. In the transaction that closes the job.
    """
    connection.execute(COUNT, {"id": job_id})


def begin(connection: Connection, tenant: str) -> None:
    """The budget of a tenant begins anew."""
    connection.execute(BEGIN, {"name": tenant})


def spent(connection: Connection) -> dict[str, Decimal]:
    """What each tenant with a budget has spent of it, by its name."""
    return {row.name: row.spent for row in connection.execute(SPENT, {"name": None})}


def spent_out(connection: Connection, tenant: str) -> str | None:
    """Why the tenant may begin nothing more, in one sentence; None where its budget lasts."""
    return dict(_spent_out(connection, tenant)).get(tenant)


def over_budget(connection: Connection) -> list[tuple[int, str]]:
    """Running jobs of tenants that have reached their budget; each with a sentence."""
    return [
        (
            job_id,
            f"{why}: `nightshift tenant set {tenant} --budget MORE`, then resume the job",
        )
        for tenant, why in _spent_out(connection, None)
        for job_id in connection.scalars(RUNNING, {"name": tenant})
    ]


def _spent_out(connection: Connection, tenant: str | None) -> list[tuple[str, str]]:
    return [
        (
            row.name,
            f"the tenant {row.name} has spent {money(row.spent)}, which reaches its budget "
            f"{money(row.budget)}",
        )
        for row in connection.execute(SPENT, {"name": tenant})
        if row.spent >= row.budget
    ]
