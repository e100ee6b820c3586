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
    SELECT n.horizon, p.xid, p.seq, p.part_name, p.redo
    FROM now n LEFT JOIN parts p ON p.xid >= :after AND p.xid < n.horizon
    ORDER BY p.xid FETCH FIRST :most ROWS WITH TIES
""")
"""The first parts whose commits came since an earlier look, those of one commit together, and where
the next look begins if these are all.
"""

MOST_PARTS = 1000
"""Parts of one look."""


@dataclass(frozen=True, slots=True)
class FreshParts:
    """Parts that a reader has not seen, in the order of their commits, and its next cursor."""

    parts: list[Row]
    cursor: int


def since(connection: Connection, job_id: int, after: int, most: int = MOST_PARTS) -> FreshParts:
    """The first `most` parts that were committed, or committed anew, since the cursor `after`, and those
    of the same commit as the last; 0 is the begin. Fewer than `most` are all.
    """
    given = {"job_id": job_id, "after": after, "most": most}
    rows = list(connection.execute(FRESH, given).mappings())
    parts = [row for row in rows if row["part_name"] is not None]
    next_look = rows[-1]["xid"] + 1 if len(parts) >= most else rows[0]["horizon"]
    return FreshParts(parts, int(next_look))
