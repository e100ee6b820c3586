"""Parts of a job in the order of their commits, so that a reader can follow a job that runs.

The order is that of transaction ids. A reader takes what was committed before every transaction that is
still under way, so that no commit comes in behind its back. A row of `batches` has the id of its last
change, its commit: no column and no index is needed, and the commit costs nothing more.
"""

from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

FRESH = text("""
    WITH now AS (
        SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon,
               pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest
    ), parts AS (
        -- A row keeps 32 bits of the id; no row is older than 2^31 transactions.
        SELECT b.seq, b.part_name, b.redo, b.rows,
               (n.newest >> 32 << 32) + b.xmin::text::bigint
               - CASE WHEN (n.newest >> 32 << 32) + b.xmin::text::bigint > n.newest
                      THEN 4294967296 ELSE 0 END AS xid
        FROM batches b, now n
        WHERE b.job_id = :job_id AND b.state IN ('done', 'dead') AND b.part_name IS NOT NULL
    )
    SELECT n.horizon, p.seq, p.part_name, p.redo
    FROM now n LEFT JOIN parts p ON p.xid >= :after AND p.xid < n.horizon
    ORDER BY p.seq, lower(p.rows)
""")
"""Parts whose commits came since an earlier look, and where the next look begins."""


@dataclass(frozen=True, slots=True)
class FreshParts:
    """Parts that a reader has not seen, in the order of the dataset, and its next cursor."""

    parts: list[Row]
    cursor: int


def since(connection: Connection, job_id: int, after: int) -> FreshParts:
    """The parts that were committed, or committed anew, since the cursor `after`; 0 is the begin."""
    rows = list(connection.execute(FRESH, {"job_id": job_id, "after": after}).mappings())
    parts = [row for row in rows if row["part_name"] is not None]
    return FreshParts(parts, int(rows[0]["horizon"]))
