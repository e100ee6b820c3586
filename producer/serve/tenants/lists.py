"""Keys and tenants of the HTTP API as `nightshift key list` and `nightshift tenant list` show them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import tenant_costs
from nightshift.common.text import money
from nightshift.producer.serve.ledger import keys as ledger_keys
from nightshift.producer.serve.ledger import tenants as ledger_tenants
from nightshift.producer.views.cells import list_table
from nightshift.producer.views.rates import plain

Facts = Mapping[str, Any]


def keys(ledger: Ledger, tenant: str | None) -> list[dict[str, Any]]:
    """Every key, or those of a tenant, without what opens the door."""
    with ledger.transaction() as connection:
        return [plain(row) for row in ledger_keys.listed(connection, tenant)]


def tenants(ledger: Ledger) -> list[dict[str, Any]]:
    """Every tenant with its limits, and what it has spent of its budget, by name."""
    with ledger.transaction() as connection:
        spent = tenant_costs.spent(connection)
        return [
            plain({**asdict(tenant), "spent": spent.get(tenant.name)})
            for tenant in ledger_tenants.listed(connection)
        ]


def key_table(found: Sequence[Facts]) -> RenderableType:
    """One line a key."""
    if not found:
        return Text("no keys: `nightshift key create --tenant NAME` makes one", "bright_black")
    columns = ("key", "tenant", "role", "name", "begins and ends", "state", "expires", "last used")
    table = list_table(*columns)
    for row in found:
        table.add_row(
            str(row["id"]),
            row["tenant"],
            row["role"],
            escape(row["name"]),
            row["hint"],
            row["state"],
            _minute(row["expires_at"]),
            _minute(row["used_at"]),
        )
    return table


def tenant_table(found: Sequence[Facts]) -> RenderableType:
    """One line a tenant."""
    if not found:
        return Text("no tenants: `nightshift tenant set NAME --weight 1` makes one", "bright_black")
    columns = (
        "tenant",
        "weight",
        "priority up to",
        "pools",
        "rows",
        "tokens",
        "files",
        "bytes",
        "budget",
        "spent",
        "folders",
        "may name",
    )
    table = list_table(*columns)
    for row in found:
        named = [name for name in ("callables", "remotes") if row[name]]
        table.add_row(
            row["name"],
            f"{row['weight']:g}",
            str(row["max_priority"]),
            "all" if row["pools"] is None else escape(", ".join(row["pools"])),
            _most(row["max_rows"]),
            _most(row["max_tokens"]),
            _most(row["max_files"]),
            _most(row["max_bytes"]),
            _most(row["budget"]),
            "—" if row["spent"] is None else money(row["spent"]),
            escape(", ".join(row["roots"])) or "—",
            ", ".join(named) or "—",
        )
    return table


def _most(value: float | None) -> str:
    return "no limit" if value is None else f"{float(value):,.15g}"


def _minute(moment: str | datetime | None) -> str:
    """A moment on the clock of this machine, to the minute."""
    if moment is None:
        return "—"
    found = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    return found.astimezone().isoformat(" ", "minutes")[:16]
