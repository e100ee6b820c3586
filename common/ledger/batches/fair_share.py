"""What a child may hold of a queue when little is left, so that its siblings have work as well."""

from sqlalchemy import text

from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.connection import Connection


def fair_share(connection: Connection, who: Claimant, lease_seconds: float) -> int | None:
    """Rows of the queue that are still open, for each of its living children; at least 1.

    None while more batches wait for admission: then there is enough for all. 0 when no batch is
    admitted, so that there is nothing to share.
    """
    found = connection.scalar(
        FAIR_SHARE,
        {
            "queue": f"{who.pool}.{who.engine_key}",
            "pool": who.pool,
            "engine_key": who.engine_key,
            "lease_seconds": lease_seconds,
        },
    )
    return None if found is None else int(found)


FAIR_SHARE = text("""
    WITH sharing AS (
        SELECT id FROM jobs
        WHERE state = 'running' AND pool = :pool AND engine_key = :engine_key
    )
    SELECT CASE
        WHEN NOT EXISTS (SELECT FROM batches b WHERE b.queue = :queue AND b.state = 'queued')
            THEN 0
        -- LATERAL with LIMIT keeps to the index; old statistics may otherwise choose a full scan.
        WHEN EXISTS (SELECT FROM sharing CROSS JOIN LATERAL (
                         SELECT FROM batches b WHERE b.job_id = sharing.id AND b.state = 'pending'
                         ORDER BY b.seq, b.id LIMIT 1) AS next)
            THEN NULL
        ELSE (SELECT ceil(greatest(1, sum(c.rows_total - c.rows_done - c.rows_failed))
                          / greatest(1, (
                  SELECT count(*) FROM workers
                  WHERE pool = :pool AND engine_key = :engine_key AND state = 'ready'
                    AND seen_at > now() - make_interval(secs => :lease_seconds))))
              FROM job_counters c WHERE c.job_id IN (SELECT id FROM sharing))
        END
""")
"""Open rows of a queue by its ready children; null while a batch waits for admission."""
