"""What a tenant has open at once."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

RESERVED = text("""
    SELECT coalesce(sum(reserved_rows), 0)::bigint + (
               SELECT coalesce(sum(p.rows_total), 0)::bigint
               FROM jobs j JOIN job_progress p ON p.job = j.id
               WHERE j.tenant = :tenant AND j.tenant <> '' AND j.state IN ('running', 'paused')
                 AND j.id <> :besides
                 AND NOT EXISTS (SELECT FROM api_batches b WHERE b.job_id = j.id)
           ) AS rows,
           coalesce(sum(reserved_tokens), 0)::bigint AS tokens
    FROM api_batches
    WHERE tenant = :tenant AND state IN ('in_progress', 'finalizing', 'cancelling')
      AND job_id <> :besides
""")
"""Rows of batches and other jobs that are not over, and estimated tokens of batches."""


def reserved(connection: Connection, tenant: str, *, besides: int) -> tuple[int, int]:
    """Rows that the open batches and jobs of a tenant have reserved, and estimated tokens of its batches,
    `besides` those of one job. Under the lock of the tenant nobody adds to them.
    """
    row = connection.execute(RESERVED, {"tenant": tenant, "besides": besides}).one()
    return row.rows, row.tokens
