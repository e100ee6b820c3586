"""What the open batches of a tenant have reserved."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

RESERVED = text("""
    SELECT coalesce(sum(reserved_rows), 0)::bigint AS rows,
           coalesce(sum(reserved_tokens), 0)::bigint AS tokens
    FROM api_batches
    WHERE tenant = :tenant AND state IN ('in_progress', 'finalizing', 'cancelling')
""")
"""Rows and estimated tokens of batches that are not over."""


def reserved(connection: Connection, tenant: str) -> tuple[int, int]:
    """Rows and estimated tokens that the open batches of a tenant have reserved. Under the lock of the
    tenant nobody adds to them.
    """
    row = connection.execute(RESERVED, {"tenant": tenant}).one()
    return row.rows, row.tokens
