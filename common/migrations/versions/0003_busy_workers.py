"""Demand never falls below the workers that hold leases: an autoscaler takes no busy one away."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Older code reads the same columns, so ledger_meta.compatible_from stays as it is.
VIEW = """
CREATE OR REPLACE VIEW pool_demand AS
WITH open_work AS (
    SELECT j.pool, j.engine_key, max(j.priority) AS priority, count(*) AS jobs,
           sum(CASE WHEN j.state = 'running' THEN p.batches_pending + p.batches_queued
                    ELSE 0 END)::bigint AS batches_waiting,
           sum(p.batches_leased)::bigint AS batches_leased,
           sum(CASE WHEN j.state = 'running' THEN p.rows_total - p.rows_done - p.rows_failed
                    ELSE 0 END)::bigint AS rows_open,
           sum(least(p.batches_pending + p.batches_queued + p.batches_leased,
                     coalesce(j.max_parallel, 2147483647)))::bigint AS batches_allowed
    FROM jobs j JOIN job_progress p ON p.job = j.id
    WHERE j.state = 'running' OR j.state = 'paused' AND p.batches_leased > 0
    GROUP BY j.pool, j.engine_key
)
SELECT o.pool, o.engine_key, o.priority, o.jobs, o.batches_waiting, o.batches_leased, o.rows_open,
       w.workers,
       CASE WHEN o.batches_waiting + o.batches_leased = 0 THEN 0
            ELSE greatest(1, w.busy, least(o.batches_allowed,
                 ceil(o.rows_open::numeric / greatest(w.window_rows, 1))::bigint)) END
           AS desired_workers
FROM open_work o
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(max(window_rows), 256) AS window_rows,
           count(*) FILTER (WHERE EXISTS (
               SELECT FROM batches b WHERE b.owner = workers.id AND b.state = 'leased')) AS busy
    FROM workers WHERE workers.pool = o.pool AND workers.engine_key = o.engine_key
      AND state <> 'ended' AND seen_at > now() - interval '1 minute'
) AS w;
COMMENT ON VIEW pool_demand IS
    'One row for each engine with open work: how much waits, how many workers would have something '
    'to do (desired_workers: at least 1 while work is open, and never fewer than hold leases; of a '
    'paused job what is under way).';
"""


def upgrade() -> None:
    """Replaces the view."""
    op.execute(VIEW)
