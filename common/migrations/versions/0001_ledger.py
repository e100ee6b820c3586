"""The ledger: jobs, input files, batches, attempts, row errors, workers, engines, counters."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE ledger_meta (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    compatible_from integer NOT NULL
);
COMMENT ON TABLE ledger_meta IS 'The oldest code (its schema number) that may use these tables.';
INSERT INTO ledger_meta (compatible_from) VALUES (1);

CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    pool text NOT NULL,
    priority integer NOT NULL,
    engine_key text NOT NULL,
    state text NOT NULL DEFAULT 'running'
        CHECK (state IN ('running', 'paused', 'completed', 'failed', 'cancelled')),
    reason text,
    spec jsonb NOT NULL,
    identity text NOT NULL UNIQUE,
    spec_identity text NOT NULL,
    output_uri text NOT NULL UNIQUE,
    max_parallel integer,
    max_failed_fraction double precision NOT NULL,
    input_schema bytea NOT NULL,
    output_schema bytea,
    judged_done bigint NOT NULL DEFAULT 0,
    judged_failed bigint NOT NULL DEFAULT 0,
    retries integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    closed_at timestamptz,
    finisher text,
    finisher_until timestamptz,
    CHECK (state NOT IN ('completed') OR closed_at IS NOT NULL)
);
COMMENT ON COLUMN jobs.finished_at IS 'When the job reached completed, failed or cancelled.';
COMMENT ON COLUMN jobs.closed_at IS 'When its manifest was written; null while finish has work.';
COMMENT ON COLUMN jobs.retries IS 'How often rows of it were made to run again: a manifest of an earlier count is stale.';
COMMENT ON COLUMN jobs.judged_failed IS 'Failed rows at the last resume: judged anew from there.';
CREATE INDEX jobs_open ON jobs (pool, engine_key, priority DESC) WHERE state = 'running';
CREATE INDEX jobs_unclosed ON jobs (id) WHERE closed_at IS NULL;

CREATE TABLE input_files (
    job_id bigint NOT NULL REFERENCES jobs,
    file_index integer NOT NULL,
    uri text NOT NULL,
    format text NOT NULL,
    size bigint NOT NULL,
    fingerprint text NOT NULL,
    row_count bigint NOT NULL,
    first_row bigint NOT NULL,
    PRIMARY KEY (job_id, file_index)
);

-- No foreign keys from batches and attempts: a million of them are checked by the job's row
-- lock in the transaction that inserts, and no job is ever deleted.
CREATE TABLE batches (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    seq integer NOT NULL,
    parent_id bigint,
    file_index integer NOT NULL,
    rows int8multirange NOT NULL CHECK (NOT isempty(rows)),
    row_count integer NOT NULL CHECK (row_count > 0),
    locator_row bigint,
    byte_offset bigint,
    byte_length bigint,
    state text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'queued', 'leased', 'done', 'dead', 'split')),
    queue text,
    priority integer,
    rank bigint,
    attempt integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    owner text,
    lease_expires_at timestamptz,
    not_before timestamptz,
    failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    losses integer NOT NULL DEFAULT 0 CHECK (losses >= 0),
    part_name text,
    part_bytes bigint,
    part_checksum text,
    rows_failed integer NOT NULL DEFAULT 0 CHECK (rows_failed BETWEEN 0 AND row_count),
    prompt_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    redo int8multirange,
    redo_count integer NOT NULL DEFAULT 0 CHECK (redo_count BETWEEN 0 AND row_count),
    last_error text,
    CHECK ((state = 'leased') = (lease_expires_at IS NOT NULL)),
    CHECK (state <> 'leased' OR (owner IS NOT NULL AND attempt > 0)),
    CHECK ((part_name IS NULL) = (part_checksum IS NULL)),
    CHECK ((part_name IS NULL) = (part_bytes IS NULL)),
    CHECK (state <> 'done' OR part_name IS NOT NULL),
    CHECK (state <> 'queued'
           OR (queue IS NOT NULL AND priority IS NOT NULL AND rank IS NOT NULL)),
    CHECK ((redo IS NULL) = (redo_count = 0)),
    CHECK (redo IS NULL OR part_name IS NOT NULL)
);
COMMENT ON COLUMN batches.seq IS 'Place in the dataset; children of a split keep their root''s.';
COMMENT ON COLUMN batches.rows IS 'Dataset-wide row indices that the batch covers.';
COMMENT ON COLUMN batches.queue IS
    'Pool and engine key, with priority the job''s own: set at the first admission, for claims.';
COMMENT ON COLUMN batches.attempt IS 'The fence: rises at each claim, never falls.';
COMMENT ON COLUMN batches.redo IS 'Rows to run again; null runs all, others keep their answer.';
CREATE INDEX batches_by_job ON batches (job_id, seq);
CREATE INDEX batches_pending ON batches (job_id, seq, id) WHERE state = 'pending';
CREATE INDEX batches_backing_off ON batches (job_id, not_before)
    WHERE state = 'pending' AND not_before IS NOT NULL;
-- The order of claims: one reads as many entries as it takes, however many are queued.
CREATE INDEX batches_queued ON batches (queue, priority DESC, rank, id) WHERE state = 'queued';
CREATE INDEX batches_leased ON batches (owner) WHERE state = 'leased';
CREATE INDEX batches_dead ON batches (job_id) WHERE state = 'dead';
-- A claim walks over the index entries of what was claimed since the last vacuum, which must not
-- pass over the indexes, as it does while few pages hold dead rows.
ALTER TABLE batches SET (
    autovacuum_vacuum_scale_factor = 0.01, vacuum_index_cleanup = on, fillfactor = 85);

CREATE TABLE attempts (
    batch_id bigint NOT NULL,
    attempt integer NOT NULL,
    job_id bigint NOT NULL,
    worker_id text NOT NULL,
    engine text NOT NULL,
    engine_version text NOT NULL,
    woken text NOT NULL CHECK (woken IN ('message', 'poll')),
    claimed_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    outcome text CHECK (outcome IN ('done', 'failed', 'released', 'lost', 'split')),
    error text,
    row_count integer,
    rows_failed integer,
    prompt_tokens bigint,
    output_tokens bigint,
    PRIMARY KEY (batch_id, attempt),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
);
COMMENT ON TABLE attempts IS 'One row a lease: who held it, how it was woken, how it ended.';
CREATE INDEX attempts_recent ON attempts (job_id, ended_at DESC) WHERE outcome IN ('done', 'split');
ALTER TABLE attempts SET (autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE row_errors (
    job_id bigint NOT NULL,
    row_index bigint NOT NULL,
    batch_id bigint NOT NULL,
    row_id text,
    kind text NOT NULL,
    message text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, row_index)
);
COMMENT ON TABLE row_errors IS
    'The errors in the parts, row by row, also of rows that run again: ask the view failed_rows.';

CREATE TABLE workers (
    id text PRIMARY KEY,
    supervisor text NOT NULL,
    pool text NOT NULL,
    slot integer NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    engine_key text NOT NULL,
    engine text,
    engine_version text,
    state text NOT NULL CHECK (state IN ('loading', 'ready', 'draining', 'ended')),
    window_rows integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT now(),
    ready_at timestamptz,
    seen_at timestamptz NOT NULL DEFAULT now(),
    busy_at timestamptz,
    ended_at timestamptz,
    error text
);
COMMENT ON COLUMN workers.busy_at IS 'When a heartbeat last found a batch in its hands.';
COMMENT ON TABLE workers IS 'One row a boot of a worker child; the id is the owner of its leases.';
CREATE INDEX workers_alive ON workers (pool, engine_key) WHERE state <> 'ended';

CREATE TABLE engines (
    pool text NOT NULL,
    engine_key text NOT NULL,
    load_failures integer NOT NULL DEFAULT 0,
    retry_at timestamptz NOT NULL DEFAULT now(),
    last_error text,
    engine_version text,
    revision text,
    loaded_at timestamptz,
    PRIMARY KEY (pool, engine_key)
);
COMMENT ON COLUMN engines.load_failures IS 'Failed loads since the last success.';

CREATE TABLE job_counters (
    job_id bigint NOT NULL,
    rows_total bigint NOT NULL,
    rows_done bigint NOT NULL,
    rows_failed bigint NOT NULL,
    batches_pending bigint NOT NULL,
    batches_queued bigint NOT NULL,
    batches_leased bigint NOT NULL,
    batches_done bigint NOT NULL,
    batches_dead bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    rows_queued bigint NOT NULL DEFAULT 0,
    rows_leased bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE job_counters IS
    'Signed deltas, one row a statement that changed batches; the reaper folds them. Sum them.';
CREATE INDEX job_counters_job ON job_counters (job_id);
ALTER TABLE job_counters SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
"""

# What one batch counts for. Deltas are only ever inserted, so two transactions never wait for
# each other's counters; the trigger sees every statement, so no code path can forget them.
DELTA = """
    INSERT INTO job_counters
    SELECT * FROM (
    SELECT job_id,
           sum(sign * row_count) AS total,
           sum(sign * CASE WHEN part_name IS NULL THEN 0
                           ELSE row_count - redo_count - rows_failed END) AS done,
           sum(sign * CASE WHEN part_name IS NOT NULL
                           THEN rows_failed + (state = 'dead')::int * redo_count
                           WHEN state = 'dead' THEN row_count ELSE 0 END) AS failed,
           sum(sign * (state = 'pending')::int) AS p, sum(sign * (state = 'queued')::int) AS q,
           sum(sign * (state = 'leased')::int) AS l, sum(sign * (state = 'done')::int) AS d,
           sum(sign * (state = 'dead')::int) AS x,
           sum(sign * prompt_tokens) AS prompt, sum(sign * output_tokens) AS output,
           sum(sign * (state = 'queued')::int * row_count) AS rows_queued,
           sum(sign * (state = 'leased')::int * row_count) AS rows_leased
    FROM ({rows}) AS changed
    WHERE state <> 'split'
    GROUP BY job_id) AS delta
    WHERE (total, done, failed, p, q, l, d, x, prompt, output, rows_queued, rows_leased)
          IS DISTINCT FROM (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
"""
NEW = "SELECT 1 AS sign, new_rows.* FROM new_rows"
OLD = "SELECT -1 AS sign, old_rows.* FROM old_rows"

TRIGGERS = f"""
CREATE FUNCTION count_inserted_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {DELTA.format(rows=NEW)} RETURN NULL; END $$;
CREATE FUNCTION count_updated_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {DELTA.format(rows=f"{NEW} UNION ALL {OLD}")} RETURN NULL; END $$;
CREATE TRIGGER batches_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_inserted_batches();
CREATE TRIGGER batches_updated AFTER UPDATE ON batches
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_batches();
"""

# Failed rows are those that job_counters counts: an error in a part counts unless its row runs
# again, and so do the rows of a dead batch from its death on, before it has its error part.

# The rate looks at the last 1,000 commits within 30 minutes. Its clock starts at the latest
# commit within the first fifth of their time (a whole first wave of equal batches, so that the
# filling of the pipeline does not count); with one wave only (its commits lie closer together than
# half the time that the first one took) it starts at the first claim.
# A silence of more than three times the usual gap between commits counts as time without rows.
VIEWS = """
CREATE VIEW job_progress AS
SELECT j.id AS job, j.name, j.pool, j.priority, j.state AS status, j.reason,
       c.rows_total, c.rows_done, c.rows_failed,
       c.batches_pending + c.batches_queued + c.batches_leased + c.batches_done
           + c.batches_dead AS batches_total,
       c.batches_pending, c.batches_queued, c.batches_leased, c.batches_done, c.batches_dead,
       c.prompt_tokens, c.output_tokens,
       CASE WHEN j.state = 'running' THEN round(r.rows_per_second::numeric, 3) END
           AS rows_per_second,
       CASE WHEN j.state = 'running' THEN round(r.tokens_per_second::numeric, 3) END
           AS output_tokens_per_second,
       CASE WHEN j.state = 'running' AND r.rows_per_second > 0
            THEN round(((c.rows_total - c.rows_done - c.rows_failed)
                        / r.rows_per_second)::numeric, 1) END AS eta_seconds,
       j.output_uri, j.created_at, j.started_at, j.finished_at
FROM jobs j
CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_total), 0)::bigint AS rows_total,
           coalesce(sum(rows_done), 0)::bigint AS rows_done,
           coalesce(sum(rows_failed), 0)::bigint AS rows_failed,
           coalesce(sum(batches_pending), 0)::bigint AS batches_pending,
           coalesce(sum(batches_queued), 0)::bigint AS batches_queued,
           coalesce(sum(batches_leased), 0)::bigint AS batches_leased,
           coalesce(sum(batches_done), 0)::bigint AS batches_done,
           coalesce(sum(batches_dead), 0)::bigint AS batches_dead,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens
    FROM job_counters WHERE job_id = j.id
) AS c
LEFT JOIN LATERAL (
    WITH recent AS (
        SELECT ended_at, claimed_at, row_count, output_tokens FROM attempts
        WHERE job_id = j.id AND outcome IN ('done', 'split')
          AND ended_at > now() - interval '30 minutes' AND ended_at >= j.started_at
        ORDER BY ended_at DESC LIMIT 1000
    ), span AS (
        SELECT min(ended_at) AS first, max(ended_at) AS last, min(claimed_at) AS claimed,
               count(DISTINCT ended_at) AS commits
        FROM recent
    ), anchored AS MATERIALIZED (
        -- Computed once: as a plain CTE it is copied into the join below and run for each commit.
        SELECT s.*, CASE WHEN s.commits >= 4 AND s.last - s.first > (s.first - s.claimed) / 2
                    THEN (SELECT max(ended_at) FROM recent
                          WHERE ended_at <= s.first + (s.last - s.first) / 5) END AS anchor
        FROM span s
    ), clocked AS (
        SELECT a.*, coalesce(a.anchor, a.claimed) AS since,
               CASE WHEN now() - a.last > 3 * (a.last - a.claimed) / a.commits
                    THEN now() ELSE a.last END AS until
        FROM anchored a
    )
    SELECT sum(recent.row_count) / nullif(extract(epoch FROM k.until - k.since), 0)
               AS rows_per_second,
           sum(recent.output_tokens) / nullif(extract(epoch FROM k.until - k.since), 0)
               AS tokens_per_second
    FROM clocked k JOIN recent ON k.anchor IS NULL OR recent.ended_at > k.anchor
    GROUP BY k.until, k.since
) AS r ON j.state = 'running';

CREATE VIEW failed_rows AS
SELECT e.job_id AS job, j.name, e.row_index, e.row_id, e.kind, e.message, e.batch_id, e.failed_at
FROM row_errors e JOIN jobs j ON j.id = e.job_id
WHERE NOT EXISTS (SELECT FROM batches b WHERE b.id = e.batch_id AND b.redo @> e.row_index)
UNION ALL
SELECT b.job_id, j.name, r.row_index, NULL, 'batch_dead',
       coalesce(b.last_error, 'the batch is dead'), b.id, a.ended_at
FROM batches b JOIN jobs j ON j.id = b.job_id
LEFT JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
CROSS JOIN LATERAL unnest(coalesce(b.redo, b.rows)) AS piece
CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS r (row_index)
WHERE b.state = 'dead' AND (b.part_name IS NULL OR b.redo IS NOT NULL);

CREATE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid, w.state, w.engine, w.engine_version,
       w.engine_key, w.window_rows, coalesce(l.batches, 0) AS batches_leased,
       coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error
FROM workers w
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended';

CREATE VIEW pool_demand AS
WITH open_work AS (
    SELECT j.pool, j.engine_key, max(j.priority) AS priority, count(*) AS jobs,
           sum(p.batches_pending + p.batches_queued)::bigint AS batches_waiting,
           sum(p.batches_leased)::bigint AS batches_leased,
           sum(p.rows_total - p.rows_done - p.rows_failed)::bigint AS rows_open,
           sum(least(p.batches_pending + p.batches_queued + p.batches_leased,
                     coalesce(j.max_parallel, 2147483647)))::bigint AS batches_allowed
    FROM jobs j JOIN job_progress p ON p.job = j.id
    WHERE j.state = 'running'
    GROUP BY j.pool, j.engine_key
)
SELECT o.pool, o.engine_key, o.priority, o.jobs, o.batches_waiting, o.batches_leased, o.rows_open,
       w.workers,
       CASE WHEN o.batches_waiting + o.batches_leased = 0 THEN 0
            ELSE greatest(1, least(o.batches_allowed,
                 ceil(o.rows_open::numeric / greatest(w.window_rows, 1))::bigint)) END
           AS desired_workers
FROM open_work o
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(max(window_rows), 256) AS window_rows
    FROM workers WHERE workers.pool = o.pool AND workers.engine_key = o.engine_key
      AND state <> 'ended' AND seen_at > now() - interval '1 minute'
) AS w;
"""

COMMENTS = {
    "job_progress": "One row a job: what is done, how fast, when it ends. Rows failed are not "
    "among rows done.",
    "failed_rows": "One row for each input row that has an error in place of an answer.",
    "worker_status": "One row a living worker child: its engine and what it holds.",
    "pool_demand": "One row for each engine with open work: how much waits, how many workers "
    "would have something to do (desired_workers, at least 1 while work is open).",
}


def upgrade() -> None:
    """Creates everything."""
    for statements in (TABLES, TRIGGERS, VIEWS):
        op.execute(statements)
    for view, said in COMMENTS.items():
        op.execute(f"COMMENT ON VIEW {view} IS '{said}'")
