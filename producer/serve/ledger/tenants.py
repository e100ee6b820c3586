"""Tenants: who owns keys, files, batches and jobs of the HTTP API, and what they may do."""

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import RowMapping, text

from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of tenants; they are names of folders in the store, too."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant with its limits; None is no limit, `pools` None is every pool.

    `max_rows` and `max_tokens` bound what is enqueued at once, `max_files` and `max_bytes` the files of the
    HTTP API that are stored. `budget` bounds what the jobs cost
    together since `budget_from`, in the currency of the prices (`tenant_costs.py`).
    """

    name: str
    weight: float
    max_priority: int
    pools: tuple[str, ...] | None
    max_rows: int | None
    max_tokens: int | None
    max_files: int | None
    max_bytes: int | None
    budget: Decimal | None
    budget_from: datetime
    roots: tuple[str, ...]
    callables: bool
    remotes: bool


SELECT = text("""
    SELECT name, weight, max_priority, pools, max_rows, max_tokens, max_files, max_bytes, budget,
           budget_from, roots, callables, remotes
    FROM tenants WHERE name = :name OR :name IS NULL ORDER BY name
""")
"""One tenant, or all."""

CHANGE = text("""
    UPDATE tenants
    SET weight = :weight, max_priority = :max_priority, pools = CAST(:pools AS text[]),
        max_rows = :max_rows, max_tokens = :max_tokens, max_files = :max_files, max_bytes = :max_bytes, budget = :budget,
        roots = CAST(:roots AS text[]), callables = :callables, remotes = :remotes
    WHERE name = :name
""")
"""Every field of a tenant."""

LOCK = text("SELECT name FROM tenants WHERE name = :name FOR NO KEY UPDATE")
"""The row of a tenant, for what counts against its limits."""


def check_name(name: str) -> None:
    """BadInput for a name that a tenant cannot have."""
    if NAME.fullmatch(name) is None:
        raise BadInput(
            f"{name[:100]!r} is no name of a tenant: it has 1 to 63 letters, digits, dots, dashes "
            "and underscores, and begins with a letter or a digit"
        )


def ensure(connection: Connection, name: str) -> bool:
    """Makes a tenant with the limits of a new one, unless there is one of that name; whether it is
    new. BadInput for a name that a tenant cannot have.
    """
    check_name(name)
    statement = text("INSERT INTO tenants (name) VALUES (:name) ON CONFLICT DO NOTHING")
    return connection.execute(statement, {"name": name}).rowcount == 1


def change(connection: Connection, tenant: Tenant) -> None:
    """Writes every field of a tenant."""
    given = asdict(tenant)
    lists = {"pools": tenant.pools and list(tenant.pools), "roots": list(tenant.roots)}
    connection.execute(CHANGE, {**given, **lists})


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
