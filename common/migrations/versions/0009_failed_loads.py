"""Whom a failed load concerns, machines that are set aside, and why a job waits."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Older workers write refusals without the new columns, which have defaults.
TABLES = """
ALTER TABLE refusals
    ADD COLUMN concern text NOT NULL DEFAULT 'machine'
        CHECK (concern IN ('worker', 'machine', 'job')),
    ADD COLUMN passes boolean NOT NULL DEFAULT true,
    ADD COLUMN failed_since timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN failed_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN refusals.concern IS 'Whose matter the last error is: the worker''s, the machine''s, the job''s.';
COMMENT ON COLUMN refusals.passes IS 'The same load may work later, with nothing changed.';
COMMENT ON COLUMN refusals.failed_since IS 'The first of these failures.';
COMMENT ON COLUMN refusals.failed_at IS 'The last of these failures.';
"""

VIEWS = """
CREATE VIEW machines_set_aside AS
SELECT pool, engine_key, host, supervisor, concern, failures, failed_since,
       round(extract(epoch FROM retry_at - now())::numeric, 1) AS seconds_left, error
FROM refusals WHERE retry_at > now();
COMMENT ON VIEW machines_set_aside IS
    'One row for each machine and engine that it could not load and does not try again yet.';

CREATE OR REPLACE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid, w.state, w.engine, w.engine_version,
       w.engine_key, w.window_rows, coalesce(l.batches, 0) AS batches_leased,
       coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error,
       (SELECT count(*) FROM machines_set_aside m
        WHERE m.pool = w.pool AND m.supervisor = w.supervisor) AS engines_set_aside
FROM workers w
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended';
"""

# A machine that failed once and tries again is still one that could not load the engine.
WAITING = """
CREATE OR REPLACE VIEW job_progress AS
SELECT p.*, CASE
    WHEN p.status = 'running' AND p.batches_pending + p.batches_queued > 0 AND NOT EXISTS (
        SELECT FROM jobs j JOIN workers w USING (pool, engine_key)
        WHERE j.id = p.job AND w.seen_at > now() - interval '1 minute'
          AND (w.state IN ('ready', 'draining') OR w.state = 'loading' AND NOT EXISTS (
              SELECT FROM refusals r WHERE r.pool = w.pool AND r.engine_key = w.engine_key
              AND r.supervisor = w.supervisor)))
    THEN (
        SELECT CASE
            WHEN count(s.supervisor) = 0 THEN format('no worker of the pool %s is alive', j.pool)
            WHEN count(s.supervisor) = count(r.supervisor) + count(*) FILTER (WHERE s.other)
            THEN 'no worker of the pool ' || j.pool || ' can load its engine'
                 || coalesce('; last, on ' || (array_agg(r.host ORDER BY r.failed_at DESC)
                                 FILTER (WHERE r.host IS NOT NULL))[1]
                    || ': ' || (array_agg(r.error ORDER BY r.failed_at DESC)
                                FILTER (WHERE r.host IS NOT NULL))[1], '')
        END
        FROM jobs j
        LEFT JOIN LATERAL (
            SELECT supervisor, bool_and(serves <> j.engine_key) IS TRUE AS other FROM slots
            WHERE pool = j.pool AND seen_at > now() - interval '1 minute' GROUP BY supervisor
        ) AS s ON true
        LEFT JOIN refusals r ON r.pool = j.pool AND r.engine_key = j.engine_key
                            AND r.supervisor = s.supervisor AND NOT s.other
        WHERE j.id = p.job GROUP BY j.pool
    ) END AS waiting
FROM ({progress}) AS p
"""

DEFINITION = "SELECT pg_get_viewdef('job_progress'::regclass)"


def upgrade() -> None:
    """Adds columns to refusals, a view, and a column at the end of two views."""
    op.execute(TABLES)
    op.execute(VIEWS)
    progress = op.get_bind().exec_driver_sql(DEFINITION).scalar_one().strip().rstrip(";")
    op.execute(WAITING.format(progress=progress))
