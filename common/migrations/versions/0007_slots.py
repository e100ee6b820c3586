"""Slots of machines, the plan of each pool, what a machine refuses, and the demand of each job."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Older supervisors choose for themselves and are in no plan: ledger_meta.compatible_from stays.
TABLES = """
CREATE TABLE slots (
    supervisor text NOT NULL,
    slot integer NOT NULL,
    pool text NOT NULL,
    host text NOT NULL,
    gpus text NOT NULL,
    serves text,
    state text NOT NULL CHECK (state IN ('free', 'loading', 'ready', 'draining')),
    worker_id text,
    engine_key text,
    ready_at timestamptz,
    idle_at timestamptz,
    refused text[] NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (supervisor, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE slots IS
    'One row a slot of a living machine, written by its supervisor alone: what it runs and refuses.';
COMMENT ON COLUMN slots.serves IS 'The only engine key that the slot may have, if there is one.';
COMMENT ON COLUMN slots.idle_at IS
    'From then on the slot counts as idle; null while its child holds batches or loads.';
CREATE INDEX slots_by_pool ON slots (pool);

CREATE TABLE slot_plans (
    supervisor text NOT NULL,
    slot integer NOT NULL,
    pool text NOT NULL,
    engine_key text NOT NULL,
    PRIMARY KEY (supervisor, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE slot_plans IS
    'The engine that each slot should have; a slot without a row keeps what it has.';
CREATE INDEX slot_plans_by_pool ON slot_plans (pool);

CREATE TABLE pool_plans (
    pool text PRIMARY KEY,
    computed_at timestamptz NOT NULL,
    desired_slots jsonb NOT NULL,
    waiting_since jsonb NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE pool_plans IS 'When the plan of a pool was computed, and what came of it.';
COMMENT ON COLUMN pool_plans.desired_slots IS
    'Slots by engine key that a pool without end would use.';
COMMENT ON COLUMN pool_plans.waiting_since IS
    'Seconds since 1970 by engine key: since when its work has had no slot.';

CREATE TABLE refusals (
    pool text NOT NULL,
    engine_key text NOT NULL,
    supervisor text NOT NULL,
    host text NOT NULL,
    failures integer NOT NULL,
    retry_at timestamptz NOT NULL,
    error text NOT NULL,
    PRIMARY KEY (pool, engine_key, supervisor)
);
COMMENT ON TABLE refusals IS
    'Machines that could not load an engine: they do not try again before retry_at.';

ALTER TABLE engines ADD COLUMN load_seconds double precision, ADD COLUMN window_rows integer;
COMMENT ON COLUMN engines.load_seconds IS 'How long the last load took.';
COMMENT ON COLUMN engines.window_rows IS 'Rows that a child holds at once, by the last load.';
"""

VIEWS = """
CREATE VIEW job_demand AS
SELECT j.id AS job, j.pool, j.engine_key, j.priority, c.waiting AS batches_waiting,
       c.leased AS batches_leased, c.rows_open,
       greatest(coalesce(h.slots, 0), CASE WHEN a.claimable > 0 THEN least(
           a.allowed,
           greatest(c.rows_open, a.allowed) / w.window_rows,
           coalesce(h.slots, 0) + greatest(c.rows_open - c.rows_leased, a.claimable) / w.window_rows
       ) ELSE 0 END) AS slots,
       (ceil(coalesce(h.slots, 0) - 0.000001) + a.claimable)::bigint AS most_slots
FROM jobs j
LEFT JOIN engines e ON e.pool = j.pool AND e.engine_key = j.engine_key
CROSS JOIN LATERAL (SELECT coalesce(e.window_rows, 256)::float8 AS window_rows) AS w
-- A child that holds batches of several jobs is a part of a slot for each.
LEFT JOIN (
    SELECT pool, job_id, sum(part)::float8 AS slots
    FROM (SELECT w.pool, b.job_id, 1.0 / count(*) OVER (PARTITION BY w.pool, b.owner) AS part
          FROM workers w JOIN batches b ON b.owner = w.id AND b.state = 'leased'
          WHERE w.state <> 'ended' AND w.seen_at > now() - interval '1 minute'
          GROUP BY w.pool, b.owner, b.job_id) AS held
    GROUP BY pool, job_id
) AS h ON h.pool = j.pool AND h.job_id = j.id
CROSS JOIN LATERAL (
    SELECT CASE WHEN j.state = 'running'
                THEN coalesce(sum(batches_pending + batches_queued), 0) ELSE 0 END::bigint
                AS waiting,
           coalesce(sum(batches_leased), 0)::bigint AS leased,
           CASE WHEN j.state = 'running'
                THEN coalesce(sum(rows_total - rows_done - rows_failed), 0) ELSE 0 END::bigint
                AS rows_open,
           coalesce(sum(rows_leased), 0)::bigint AS rows_leased
    FROM job_counters WHERE job_id = j.id
) AS c
CROSS JOIN LATERAL (
    -- Batches that back off for longer than a load takes are no work yet.
    SELECT least(j.max_parallel, c.waiting + c.leased - count(*)) AS allowed,
           greatest(0, least(j.max_parallel - c.leased, c.waiting - count(*))) AS claimable
    FROM batches b
    WHERE b.job_id = j.id AND b.state = 'pending'
      AND b.not_before > now() + make_interval(secs => coalesce(e.load_seconds, 0))
) AS a
WHERE j.state = 'running' OR j.state = 'paused' AND c.leased > 0;
COMMENT ON VIEW job_demand IS
    'One row for each job with open work: how many slots it would fill with windows of rows (slots, '
    'in parts of a slot) and how many it could use at most (most_slots, a batch each); of a paused '
    'job what is under way.';

CREATE OR REPLACE VIEW pool_demand AS
WITH open_work AS (
    SELECT pool, engine_key, max(priority) AS priority, count(*) AS jobs,
           sum(batches_waiting)::bigint AS batches_waiting,
           sum(batches_leased)::bigint AS batches_leased, sum(rows_open)::bigint AS rows_open,
           ceil(sum(slots) - 0.000001)::bigint AS slots
    FROM job_demand GROUP BY pool, engine_key
)
SELECT o.pool, o.engine_key, o.priority, o.jobs, o.batches_waiting, o.batches_leased, o.rows_open,
       w.workers, coalesce((p.desired_slots ->> o.engine_key)::bigint, o.slots) AS desired_workers
FROM open_work o
LEFT JOIN pool_plans p ON p.pool = o.pool AND p.computed_at > now() - interval '2 seconds'
CROSS JOIN LATERAL (
    SELECT count(*) AS workers FROM workers
    WHERE workers.pool = o.pool AND workers.engine_key = o.engine_key
      AND state <> 'ended' AND seen_at > now() - interval '1 minute'
) AS w;
COMMENT ON VIEW pool_demand IS
    'One row for each engine with open work: how much waits, how many workers would have something '
    'to do (desired_workers, from the plan of the pool, or from job_demand where no plan is younger '
    'than 2 s: never fewer than hold leases; of a paused job what is under way).';
"""


def upgrade() -> None:
    """Adds the tables and the view of demand, and lets pool_demand read the plan."""
    op.execute(TABLES)
    op.execute(VIEWS)
