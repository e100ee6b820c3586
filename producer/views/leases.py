"""Leases of a job as readers may see them."""

from collections.abc import Iterable, Mapping
from typing import Any

from nightshift.common.ledger import Connection, Row
from nightshift.common.ledger.jobs import messages
from nightshift.common.public_text import marked, shown


def seen(
    connection: Connection, job_id: int, rows: Iterable[Row], tenant: str | None
) -> list[Mapping[Any, Any]]:
    """Rows of `job_facts` with whole messages; for a reader of a `tenant` with public ones."""
    if tenant is None:
        whole = messages.whole(connection, job_id)
        return [whole.row(row, "error") for row in rows]
    return [
        {**row, "worker_error": row["worker_error"] and shown(marked(row["worker_error"]))}
        for row in rows
    ]
