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
