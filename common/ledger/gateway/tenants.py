"""Tenants: who owns keys, files, batches and jobs of the HTTP API, and what they may do."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant with its limits; None is no limit, `pools` None is every pool.

    `max_rows` and `max_tokens` bound what is enqueued at once. `budget` bounds what the jobs cost
    together since `budget_from`, in the currency of the prices.
    """

    name: str
    weight: float
    max_priority: int
    pools: tuple[str, ...] | None
    max_rows: int | None
    max_tokens: int | None
    budget: Decimal | None
    budget_from: datetime
    roots: tuple[str, ...]
    callables: bool
    remotes: bool


SELECT = text("""
    SELECT name, weight, max_priority, pools, max_rows, max_tokens, budget, budget_from, roots,
           callables, remotes
    FROM tenants WHERE name = :name OR :name IS NULL ORDER BY name
""")
"""One tenant, or all."""

LOCK = text("SELECT name FROM tenants WHERE name = :name FOR NO KEY UPDATE")
"""The row of a tenant, for what counts against its limits."""


def ensure(connection: Connection, name: str) -> None:
    """Makes a tenant without limits, unless there is one of that name."""
    statement = text("INSERT INTO tenants (name) VALUES (:name) ON CONFLICT DO NOTHING")
    connection.execute(statement, {"name": name})


def get(connection: Connection, name: str) -> Tenant | None:
    """The tenant of this name."""
    return next(iter(_tenants(connection, name)), None)


def listed(connection: Connection) -> list[Tenant]:
    """Every tenant, by name."""
    return _tenants(connection, None)


def lock(connection: Connection, name: str) -> None:
    """Takes the row of a tenant until the end of the transaction: who counts what is enqueued, and
    adds to it, does both under this lock.
    """
    connection.execute(LOCK, {"name": name})


def _tenants(connection: Connection, name: str | None) -> list[Tenant]:
    return [_tenant(row) for row in connection.execute(SELECT, {"name": name}).mappings()]


def _tenant(row: RowMapping) -> Tenant:
    pools = None if row["pools"] is None else tuple(row["pools"])
    return Tenant(**{**row, "pools": pools, "roots": tuple(row["roots"])})
