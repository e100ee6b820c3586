-- The ledger's core: tables in the order in which work goes through them, then triggers, then views. Each wing
-- has a file of its own, with foreign keys to these tables alone.

CREATE TABLE ledger_meta (
    single boolean DEFAULT true PRIMARY KEY CHECK (single),
    compatible_from integer NOT NULL,
    ledger_id uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON TABLE ledger_meta IS 'The oldest code (its schema number) that may use these tables.';
COMMENT ON COLUMN ledger_meta.ledger_id IS
    'Random, made once: which ledger this is. A dump and its restore keep it.';

INSERT INTO ledger_meta (compatible_from) VALUES (1);

CREATE TABLE tenants (
    name text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    weight double precision NOT NULL DEFAULT 1
        CHECK ((weight > (0)::double precision) AND (weight <= (1000)::double precision)),
    max_priority integer NOT NULL DEFAULT 0,
    pools text[],
    max_rows bigint CHECK (max_rows >= 0),
    max_tokens bigint CHECK (max_tokens >= 0),
    budget numeric CHECK (budget >= (0)::numeric),
    budget_from timestamptz NOT NULL DEFAULT now(),
    spent numeric NOT NULL DEFAULT 0,
    max_files bigint CHECK (max_files >= 0),
    max_bytes bigint CHECK (max_bytes >= 0),
    roots text[] NOT NULL DEFAULT '{}'::text[],
    callables boolean NOT NULL DEFAULT false,
    remotes boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenants IS 'Who owns keys, files, batches and jobs of the HTTP API.';
COMMENT ON COLUMN tenants.weight IS 'Share of slots beside other tenants of the same priority.';
COMMENT ON COLUMN tenants.max_priority IS 'The highest priority that a job of the tenant may have.';
COMMENT ON COLUMN tenants.pools IS 'Pools that its jobs may name; null: all.';
COMMENT ON COLUMN tenants.max_rows IS 'Rows of its open batches and jobs at once; null: no limit.';
COMMENT ON COLUMN tenants.max_tokens IS
    'Estimated tokens of its open batches at once; null: no limit.';
COMMENT ON COLUMN tenants.max_files IS
    'Files of the HTTP API that it may have at once; null: no limit.';
COMMENT ON COLUMN tenants.max_bytes IS
    'Bytes of these files; null: no limit.';
COMMENT ON COLUMN tenants.budget IS
    'What its jobs may cost together since budget_from, in the currency of the prices; null: no limit.';
COMMENT ON COLUMN tenants.spent IS
    'What its jobs that are closed have cost since budget_from, less what its open ones had cost before.';
COMMENT ON COLUMN tenants.roots IS 'Prefixes of the URIs that its specs may read and write.';
COMMENT ON COLUMN tenants.callables IS 'Whether its specs may name functions.';
COMMENT ON COLUMN tenants.remotes IS 'Whether its specs may name a base_url.';

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
    requeue_below bigint,
    finish_by timestamptz,
    worked_seconds double precision,
    remark text,
    tenant text NOT NULL DEFAULT '',
    counted_cost numeric NOT NULL DEFAULT 0,
    resolved jsonb,
    id_counts jsonb,
    judged_at timestamptz,
    roots text[],
    uploads text,
    outputs text,
    stored_bytes bigint,
    archived_at timestamptz,
    state_since timestamptz NOT NULL DEFAULT now(),
    CHECK ((state <> 'completed') OR (closed_at IS NOT NULL))
);
COMMENT ON COLUMN jobs.judged_failed IS 'Failed rows at the last resume: judged anew from there.';
COMMENT ON COLUMN jobs.retries IS
    'How often rows of it were made to run again: a manifest of an earlier count is stale.';
COMMENT ON COLUMN jobs.finished_at IS 'When the job reached completed, failed or cancelled.';
COMMENT ON COLUMN jobs.closed_at IS 'When its manifest was written; null while finish has work.';
COMMENT ON COLUMN jobs.requeue_below IS
    'Set by a change of the job: batches queued with a lower rank go back to pending first.';
COMMENT ON COLUMN jobs.finish_by IS
    'When the job should be done (limits.finish_by); null without a deadline.';
COMMENT ON COLUMN jobs.worked_seconds IS
    'Written before the job is closed: time in which at least one of its batches was leased.';
COMMENT ON COLUMN jobs.remark IS 'What a worker has to say of the job while the job runs on.';
COMMENT ON COLUMN jobs.tenant IS 'Who submitted the job by HTTP; empty for the command line.';
COMMENT ON COLUMN jobs.counted_cost IS 'What of its cost stands in tenants.spent.';
COMMENT ON COLUMN jobs.resolved IS
    'What the first load of the job''s model fixed: how answers are parted, and their length. Null before.';
COMMENT ON COLUMN jobs.id_counts IS
    'Of a closed job: rows with an id, how many ids differ (null: not counted), and one that repeats.';
COMMENT ON COLUMN jobs.judged_at IS
    'Since when its failed rows count towards a pause: its last resume or retry; null: its submit.';
COMMENT ON COLUMN jobs.roots IS
    'The roots of its tenant when the job was admitted; null where the job is held to none.';
COMMENT ON COLUMN jobs.uploads IS
    'The folder of the server with the uploads of the tenant, which the job may read, too.';
COMMENT ON COLUMN jobs.outputs IS
    'The folder of the server with the outputs of the tenant, which the job may use, too.';
COMMENT ON COLUMN jobs.stored_bytes IS
    'Bytes of its live parts when it was closed last, 0 before; null where its output is not in the store.';
COMMENT ON COLUMN jobs.archived_at IS
    'When its batches, attempts and row errors left for files; null while they are in the tables.';
COMMENT ON COLUMN jobs.state_since IS 'When the job got its present state; a trigger keeps it.';
CREATE INDEX jobs_open ON jobs (pool, engine_key, priority DESC)
    WHERE state = 'running';
CREATE INDEX jobs_unclosed ON jobs (id)
    WHERE closed_at IS NULL;
CREATE INDEX jobs_unsettled ON jobs (id)
    WHERE requeue_below IS NOT NULL;
CREATE INDEX jobs_with_deadline ON jobs (pool)
    WHERE (finish_by IS NOT NULL) AND (state = 'running');
CREATE INDEX jobs_by_tenant ON jobs (tenant, id)
    WHERE tenant <> '';
CREATE INDEX jobs_failed ON jobs (finished_at)
    WHERE state = 'failed';
CREATE INDEX jobs_stored ON jobs (tenant)
    WHERE stored_bytes IS NOT NULL;

CREATE TABLE input_files (
    job_id bigint NOT NULL REFERENCES jobs,
    file_index integer NOT NULL,
    uri text NOT NULL,
    format text NOT NULL,
    size bigint NOT NULL,
    fingerprint text NOT NULL,
    row_count bigint NOT NULL,
    first_row bigint NOT NULL,
    arranged text,
    rows_left_out bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, file_index)
);
COMMENT ON COLUMN input_files.arranged IS
    'The copy from which the rows of this file and of its neighbours are read, in another order.';
COMMENT ON COLUMN input_files.rows_left_out IS
    'Rows of the file that input.where leaves out: they have numbers, and no batch holds them.';

CREATE TABLE generations (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number integer NOT NULL CHECK (number > 0),
    source text NOT NULL CHECK (source IN ('submit', 'input', 'files')),
    first_file integer NOT NULL,
    stop_file integer NOT NULL,
    first_row bigint NOT NULL,
    stop_row bigint NOT NULL,
    first_seq integer NOT NULL,
    stop_seq integer NOT NULL,
    planned_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    reopened integer NOT NULL DEFAULT 0,
    CHECK ((first_file <= stop_file) AND (first_row <= stop_row) AND (first_seq <= stop_seq)),
    PRIMARY KEY (job_id, number)
);
COMMENT ON TABLE generations IS
    'How a job grew: files, rows and batches of its submit and of each append. No row for a job that never grew and is not watched.';
COMMENT ON COLUMN generations.source IS
    'submit: the first snapshot; input: files of the spec''s own input; files: files that were named.';
COMMENT ON COLUMN generations.finished_at IS
    'When the file about its parts was written; null while one of its batches is open.';
COMMENT ON COLUMN generations.reopened IS
    'How often rows ran again or a part got another name: the file about a generation that was begun before is stale.';
CREATE INDEX generations_unfinished ON generations (job_id, number)
    WHERE finished_at IS NULL;

-- No foreign keys from batches and attempts: a million of them are checked by the job's row
-- lock in the transaction that inserts.
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
    rows_failed integer NOT NULL DEFAULT 0,
    prompt_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    redo int8multirange,
    redo_count integer NOT NULL DEFAULT 0,
    last_error text,
    version_id bigint,
    kept_versions jsonb,
    CHECK ((rows_failed >= 0) AND (rows_failed <= row_count)),
    CHECK ((redo_count >= 0) AND (redo_count <= row_count)),
    CHECK ((state = 'leased') = (lease_expires_at IS NOT NULL)),
    CHECK ((state <> 'leased') OR ((owner IS NOT NULL) AND (attempt > 0))),
    CHECK ((part_name IS NULL) = (part_checksum IS NULL)),
    CHECK ((part_name IS NULL) = (part_bytes IS NULL)),
    CHECK ((state <> 'done') OR (part_name IS NOT NULL)),
    CHECK ((state <> 'queued') OR ((queue IS NOT NULL) AND (priority IS NOT NULL) AND (rank IS NOT NULL))),
    CHECK ((redo IS NULL) = (redo_count = 0)),
    CHECK ((redo IS NULL) OR (part_name IS NOT NULL))
) WITH (vacuum_index_cleanup=on, fillfactor=85, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=20000);
COMMENT ON COLUMN batches.seq IS 'Place in the dataset; children of a split keep their root''s.';
COMMENT ON COLUMN batches.rows IS 'Dataset-wide row indices that the batch covers.';
COMMENT ON COLUMN batches.queue IS
    'Pool and engine key, with priority the job''s own: set at the first admission, for claims.';
COMMENT ON COLUMN batches.attempt IS 'The fence: rises at each claim, never falls.';
COMMENT ON COLUMN batches.owner IS
    'Who claimed it last; while the batch waits, that child may still commit it late. Null once a retry, a halving or the end of the job took that right.';
COMMENT ON COLUMN batches.redo IS 'Rows to run again; null runs all, others keep their answer.';
COMMENT ON COLUMN batches.version_id IS
    'Which of engine_versions made the rows of the part that are not in kept_versions; null if that is not known.';
COMMENT ON COLUMN batches.kept_versions IS
    'After a retry: rows of the part that other versions made, as objects of version, rows and count.';
CREATE INDEX batches_by_job ON batches (job_id, seq);
CREATE INDEX batches_pending ON batches (job_id, seq, id)
    WHERE state = 'pending';
CREATE INDEX batches_backing_off ON batches (job_id, not_before)
    WHERE (state = 'pending') AND (not_before IS NOT NULL);
-- The order of claims: one reads as many entries as it takes, however many are queued.
CREATE INDEX batches_queued ON batches (queue, priority DESC, rank, id)
    WHERE state = 'queued';
CREATE INDEX batches_leased ON batches (owner)
    WHERE state = 'leased';
CREATE INDEX batches_dead ON batches (job_id)
    WHERE state = 'dead';
CREATE INDEX batches_owned ON batches (job_id, id)
    WHERE state IN ('pending', 'queued') AND (owner IS NOT NULL);

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
    engine_microseconds bigint,
    unsent int8multirange,
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    PRIMARY KEY (batch_id, attempt)
) WITH (autovacuum_vacuum_scale_factor=0.05);
COMMENT ON TABLE attempts IS 'One row a lease: who held it, how it was woken, how it ended.';
COMMENT ON COLUMN attempts.engine_microseconds IS
    'Engine time of the job that this commit accounted for, since the one before it.';
COMMENT ON COLUMN attempts.unsent IS
    'Rows of the batch whose requests this attempt never sent to its engine; null if that is not known.';
CREATE INDEX attempts_recent ON attempts (job_id, ended_at DESC)
    WHERE outcome IN ('done', 'split');
CREATE INDEX attempts_unhappy ON attempts (job_id, ended_at DESC)
    WHERE outcome IN ('failed', 'released', 'lost');

CREATE TABLE whole_messages (
    job_id bigint NOT NULL,
    public text NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (job_id, public)
);
COMMENT ON TABLE whole_messages IS
    'Whole texts of errors of jobs of tenants, by the public texts that the other tables have.';

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
CREATE INDEX row_errors_of_batch ON row_errors (batch_id);

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
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
COMMENT ON TABLE job_counters IS
    'Signed deltas, one row a statement that changed batches; the reaper folds them. Sum them.';
CREATE INDEX job_counters_job ON job_counters (job_id);

CREATE TABLE job_spending (
    job_id bigint NOT NULL,
    worker_id text NOT NULL,
    engine_microseconds bigint NOT NULL,
    rows_run bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    rows_open bigint NOT NULL DEFAULT 0,
    cached_tokens bigint NOT NULL DEFAULT 0,
    rows_shared bigint NOT NULL DEFAULT 0,
    reasoning_tokens bigint NOT NULL DEFAULT 0,
    estimated_tokens bigint NOT NULL DEFAULT 0,
    answer_lengths bigint[] NOT NULL DEFAULT '{}',
    label_counts bigint[] NOT NULL DEFAULT '{}',
    done_uncommitted bigint NOT NULL DEFAULT 0,
    failed_uncommitted bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, worker_id)
) WITH (fillfactor=50);
COMMENT ON TABLE job_spending IS
    'One row a job and child: running totals of what the child used, committed or not.';
COMMENT ON COLUMN job_spending.engine_microseconds IS
    'Time in which the child held batches of the job; shared by rows between jobs held at once.';
COMMENT ON COLUMN job_spending.rows_open IS
    'Rows of rows_run whose batches the child still held at its last report.';
COMMENT ON COLUMN job_spending.cached_tokens IS
    'Of the prompt tokens those that were in an engine''s cache.';
COMMENT ON COLUMN job_spending.rows_shared IS
    'Of rows_run those that have the answer of a row with an equal request.';
COMMENT ON COLUMN job_spending.reasoning_tokens IS
    'Of the output tokens those of thoughts before the answer.';
COMMENT ON COLUMN job_spending.estimated_tokens IS
    'Prompt and output tokens that were estimated, since the server did not count them.';
COMMENT ON COLUMN job_spending.answer_lengths IS
    'Committed answers by output tokens: without one, then 1, 2 to 3, 4 to 7 and so on.';
COMMENT ON COLUMN job_spending.label_counts IS
    'Committed answers by the labels of the spec''s task.output.choice, in its order.';
COMMENT ON COLUMN job_spending.done_uncommitted IS
    'Rows with an answer in batches that the child holds and has not committed, as of its last report.';
COMMENT ON COLUMN job_spending.failed_uncommitted IS
    'The same for rows with an error.';

CREATE TABLE engine_versions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest text NOT NULL UNIQUE,
    engine text NOT NULL,
    engine_version text NOT NULL,
    revision text,
    code jsonb
);
COMMENT ON TABLE engine_versions IS
    'What children have loaded: an engine, its version, the revision of its model, the files of its function.';
COMMENT ON COLUMN engine_versions.digest IS 'SHA-256 of the other columns.';
COMMENT ON COLUMN engine_versions.code IS 'SHA-256 of each file of a function, by path; null for other engines.';

CREATE TABLE version_counters (
    job_id bigint NOT NULL,
    version_id bigint NOT NULL,
    rows bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
COMMENT ON TABLE version_counters IS
    'Rows of live parts by version, without those that run again, as signed deltas; the reaper folds them.';
COMMENT ON COLUMN version_counters.at IS 'When the first of the rows was committed.';
CREATE INDEX version_counters_job ON version_counters (job_id);

CREATE TABLE deletions (
    job_id bigint PRIMARY KEY,
    output boolean NOT NULL
);
COMMENT ON TABLE deletions IS
    'Closed jobs that are being deleted; the row goes with the last row of its job.';
COMMENT ON COLUMN deletions.output IS 'The files of the job in its output directory go, too.';

CREATE SEQUENCE hold_tokens;
CREATE TABLE holds (
    kind text NOT NULL CHECK (kind IN ('finish', 'archive', 'look', 'api_batch', 'standings')),
    subject text NOT NULL,
    token bigint NOT NULL,
    holder text NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE holds IS
    'What one process has to itself for a while: a finish, an archive, a look, an API batch.';
COMMENT ON COLUMN holds.subject IS 'Number of a job, or id of an API batch.';
COMMENT ON COLUMN holds.token IS 'New at each take: what the holder writes names the token.';
COMMENT ON COLUMN holds.until IS 'From then on anybody may take the subject.';

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
    ended_at timestamptz,
    error text,
    code_version text,
    version_id bigint
);
COMMENT ON TABLE workers IS 'One row a boot of a worker child; the id is the owner of its leases.';
COMMENT ON COLUMN workers.version_id IS 'Which of engine_versions the child has loaded.';
CREATE INDEX workers_alive ON workers (pool, engine_key)
    WHERE state <> 'ended';

CREATE TABLE reapers (
    name text PRIMARY KEY,
    host text NOT NULL,
    code_version text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor=50);
COMMENT ON TABLE reapers IS
    'One row a living reaper, written every few seconds; for those who look.';

CREATE TABLE slots (
    supervisor text NOT NULL,
    slot integer NOT NULL,
    pool text NOT NULL,
    host text NOT NULL,
    gpus text NOT NULL,
    serves text,
    state text NOT NULL CHECK (state IN ('free', 'loading', 'ready', 'draining', 'lost')),
    worker_id text,
    engine_key text,
    ready_at timestamptz,
    idle_at timestamptz,
    refused text[] NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    gpu_figures jsonb,
    hardware text,
    PRIMARY KEY (supervisor, slot)
) WITH (fillfactor=50);
COMMENT ON TABLE slots IS
    'One row a slot of a living machine, written by its supervisor alone: what it runs and refuses.';
COMMENT ON COLUMN slots.serves IS 'The only engine key that the slot may have, if there is one.';
COMMENT ON COLUMN slots.idle_at IS
    'From then on the slot counts as idle; null while its child holds batches or loads.';
COMMENT ON COLUMN slots.gpu_figures IS
    'Of each GPU of the slot: gpu, busy (0 to 1), memory_used and memory_total (bytes), as last read.';
COMMENT ON COLUMN slots.hardware IS
    'The GPUs of the slot, or the cores of its machine; null if the supervisor does not know.';
CREATE INDEX slots_by_pool ON slots (pool);

CREATE TABLE slot_plans (
    supervisor text NOT NULL,
    slot integer NOT NULL,
    pool text NOT NULL,
    engine_key text NOT NULL,
    PRIMARY KEY (supervisor, slot)
) WITH (fillfactor=50);
COMMENT ON TABLE slot_plans IS
    'The engine that each slot should have; a slot without a row keeps what it has.';
CREATE INDEX slot_plans_by_pool ON slot_plans (pool);

CREATE TABLE pool_plans (
    pool text PRIMARY KEY,
    computed_at timestamptz NOT NULL,
    desired_slots jsonb NOT NULL,
    waiting_since jsonb NOT NULL
) WITH (fillfactor=50);
COMMENT ON TABLE pool_plans IS 'When the plan of a pool was computed, and what came of it.';
COMMENT ON COLUMN pool_plans.desired_slots IS
    'Slots by engine key that a pool without end would use.';
COMMENT ON COLUMN pool_plans.waiting_since IS
    'Seconds since 1970 by engine key: since when its work has had no slot.';

CREATE TABLE cordons (
    kind text NOT NULL CHECK (kind IN ('host', 'worker')),
    name text NOT NULL,
    drains boolean NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE cordons IS
    'Hosts, workers (supervisors) and slots (SUPERVISOR/SLOT) that take no new work.';
COMMENT ON COLUMN cordons.drains IS 'Their children leave as by SIGTERM, and none is started.';

CREATE TABLE refusals (
    pool text NOT NULL,
    engine_key text NOT NULL,
    supervisor text NOT NULL,
    host text NOT NULL,
    failures integer NOT NULL,
    retry_at timestamptz NOT NULL,
    error text NOT NULL,
    public_error text NOT NULL,
    concern text NOT NULL DEFAULT 'machine' CHECK (concern IN ('worker', 'machine', 'job')),
    passes boolean NOT NULL DEFAULT true,
    failed_since timestamptz NOT NULL DEFAULT now(),
    failed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool, engine_key, supervisor)
);
COMMENT ON TABLE refusals IS
    'Machines that could not load an engine: they do not try again before retry_at.';
COMMENT ON COLUMN refusals.public_error IS 'The error as tenants may read it.';
COMMENT ON COLUMN refusals.concern IS
    'Whose matter the last error is: the worker''s, the machine''s, the job''s.';
COMMENT ON COLUMN refusals.passes IS 'The same load may work later, with nothing changed.';
COMMENT ON COLUMN refusals.failed_since IS 'The first of these failures.';
COMMENT ON COLUMN refusals.failed_at IS 'The last of these failures.';

CREATE TABLE engines (
    pool text NOT NULL,
    engine_key text NOT NULL,
    load_failures integer NOT NULL DEFAULT 0,
    retry_at timestamptz NOT NULL DEFAULT now(),
    last_error text,
    engine_version text,
    revision text,
    loaded_at timestamptz,
    load_seconds double precision,
    window_rows integer,
    cache_tokens bigint,
    PRIMARY KEY (pool, engine_key)
);
COMMENT ON COLUMN engines.load_failures IS 'Failed loads since the last success.';
COMMENT ON COLUMN engines.load_seconds IS 'How long the last load took.';
COMMENT ON COLUMN engines.window_rows IS 'Rows that a child holds at once, by the last load.';
COMMENT ON COLUMN engines.cache_tokens IS
    'Tokens that the prefix cache keeps, by the last load: 0 without one, null where that is not known.';

CREATE TABLE outages (
    who text NOT NULL,
    host text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('storage', 'rate', 'server')),
    job_id bigint,
    pool text,
    engine_key text,
    why text NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX outages_who ON outages (who);
COMMENT ON TABLE outages IS
    'What a worker child or a reaper waits for; told again and again, and over after until.';
COMMENT ON COLUMN outages.job_id IS 'Null: every job of the pool and the engine.';

CREATE TABLE audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened_at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    host text NOT NULL,
    action text NOT NULL,
    job_id bigint,
    subject text,
    detail jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE audit_log IS
    'One row a change that a person or a program asked for; written in the transaction of the change.';
COMMENT ON COLUMN audit_log.who IS 'User of the operating system, or name of an API key.';
COMMENT ON COLUMN audit_log.host IS 'Machine from which the change was asked for.';
COMMENT ON COLUMN audit_log.job_id IS 'No foreign key: the rows of a deleted job stay.';
COMMENT ON COLUMN audit_log.subject IS
    'What was changed where that is not the job: a batch, a host.';
COMMENT ON COLUMN audit_log.detail IS 'Old and new value of each field that changed, and more.';
CREATE INDEX audit_log_by_job ON audit_log (job_id, id)
    WHERE job_id IS NOT NULL;

CREATE FUNCTION note_job_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.state_since := now();
    RETURN NEW;
END;
$$;
CREATE TRIGGER job_state_changed BEFORE UPDATE OF state ON jobs FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state)
    EXECUTE FUNCTION note_job_state();

CREATE FUNCTION count_inserted_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
    FROM (SELECT 1 AS sign, new_rows.* FROM new_rows) AS changed
    WHERE state <> 'split'
    GROUP BY job_id) AS delta
    WHERE (total, done, failed, p, q, l, d, x, prompt, output, rows_queued, rows_leased)
          IS DISTINCT FROM (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
 RETURN NULL; END $$;
CREATE FUNCTION count_updated_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
    FROM (SELECT 1 AS sign, new_rows.* FROM new_rows UNION ALL SELECT -1 AS sign, old_rows.* FROM old_rows) AS changed
    WHERE state <> 'split'
    GROUP BY job_id) AS delta
    WHERE (total, done, failed, p, q, l, d, x, prompt, output, rows_queued, rows_leased)
          IS DISTINCT FROM (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
 RETURN NULL; END $$;
CREATE TRIGGER batches_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION count_inserted_batches();
CREATE TRIGGER batches_updated AFTER UPDATE ON batches
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_batches();

CREATE FUNCTION kept_versions(b batches, ran int8multirange, made_by bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    -- kept_versions of a batch in whose part the rows `ran` get lines of the version `made_by`.
    WITH kept AS (
        SELECT (e ->> 'version')::bigint AS version, (e ->> 'rows')::int8multirange AS rows
        FROM jsonb_array_elements(b.kept_versions) AS e
    ), before AS (
        SELECT version, rows FROM kept
        UNION ALL
        SELECT b.version_id, b.rows - coalesce(
            (SELECT range_agg(piece) FROM kept CROSS JOIN LATERAL unnest(kept.rows) AS piece), '{}')
    ), left_over AS (
        SELECT version, rows - ran AS rows FROM before WHERE version IS DISTINCT FROM made_by
    )
    SELECT jsonb_agg(jsonb_build_object(
        'version', version, 'rows', rows::text,
        'count', (SELECT sum(upper(piece) - lower(piece)) FROM unnest(rows) AS piece)))
    FROM left_over WHERE NOT isempty(rows)
$$;

CREATE FUNCTION rows_kept(e jsonb, redo int8multirange) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    -- How many rows of an object in kept_versions do not run again.
    SELECT CASE WHEN redo IS NULL THEN (e ->> 'count')::bigint ELSE (
        SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::bigint
        FROM unnest((e ->> 'rows')::int8multirange - redo) AS piece) END
$$;

CREATE FUNCTION count_inserted_versions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN 
    INSERT INTO version_counters (job_id, version_id, rows)
    SELECT c.job_id, made.version, sum(c.sign * made.rows)
    FROM (SELECT 1 AS sign, job_id, row_count, redo, redo_count, version_id, kept_versions
          FROM new_rows
          WHERE part_name IS NOT NULL AND state <> 'split'
            AND (version_id IS NOT NULL OR kept_versions IS NOT NULL)) AS c
    CROSS JOIN LATERAL (
        SELECT c.version_id AS version, c.row_count - c.redo_count - coalesce((
            SELECT sum(rows_kept(e, c.redo)) FROM jsonb_array_elements(c.kept_versions) AS e), 0) AS rows
        UNION ALL
        SELECT (e ->> 'version')::bigint, rows_kept(e, c.redo)
        FROM jsonb_array_elements(c.kept_versions) AS e
    ) AS made
    WHERE made.version IS NOT NULL
    GROUP BY c.job_id, made.version HAVING sum(c.sign * made.rows) <> 0;
 RETURN NULL; END $$;
CREATE FUNCTION count_updated_versions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN 
    INSERT INTO version_counters (job_id, version_id, rows)
    SELECT c.job_id, made.version, sum(c.sign * made.rows)
    FROM (SELECT 1 AS sign, job_id, row_count, redo, redo_count, version_id, kept_versions
          FROM new_rows
          WHERE part_name IS NOT NULL AND state <> 'split'
            AND (version_id IS NOT NULL OR kept_versions IS NOT NULL) UNION ALL SELECT -1 AS sign, job_id, row_count, redo, redo_count, version_id, kept_versions
          FROM old_rows
          WHERE part_name IS NOT NULL AND state <> 'split'
            AND (version_id IS NOT NULL OR kept_versions IS NOT NULL)) AS c
    CROSS JOIN LATERAL (
        SELECT c.version_id AS version, c.row_count - c.redo_count - coalesce((
            SELECT sum(rows_kept(e, c.redo)) FROM jsonb_array_elements(c.kept_versions) AS e), 0) AS rows
        UNION ALL
        SELECT (e ->> 'version')::bigint, rows_kept(e, c.redo)
        FROM jsonb_array_elements(c.kept_versions) AS e
    ) AS made
    WHERE made.version IS NOT NULL
    GROUP BY c.job_id, made.version HAVING sum(c.sign * made.rows) <> 0;
 RETURN NULL; END $$;
CREATE TRIGGER versions_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION count_inserted_versions();
CREATE TRIGGER versions_updated AFTER UPDATE ON batches
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_versions();

CREATE VIEW job_costs AS
SELECT j.id AS job, j.name, round(s.microseconds / 1000000, 3) AS engine_seconds, s.rows_run,
       s.prompt_tokens AS prompt_tokens_spent, s.output_tokens AS output_tokens_spent,
       CASE WHEN coalesce(p.hour, p.prompt, p.output) IS NOT NULL
            THEN round(coalesce(p.hour, 0) * s.microseconds / 3600000000
                       + coalesce(p.prompt, 0) * s.prompt_tokens / 1000000
                       + coalesce(p.output, 0) * s.output_tokens / 1000000, 6) END AS cost,
       (j.spec #>> '{limits,budget}')::numeric AS budget,
       s.estimated_tokens,
       s.estimated_tokens > 0 AND greatest(p.prompt, p.output, 0) > 0 AS cost_is_estimate
FROM jobs j
CROSS JOIN LATERAL (
    SELECT coalesce(sum(engine_microseconds), 0) AS microseconds,
           coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(estimated_tokens), 0)::bigint AS estimated_tokens
    FROM job_spending WHERE job_id = j.id
) AS s
CROSS JOIN LATERAL (
    SELECT (j.spec #>> '{engine,price_per_hour}')::numeric AS hour,
           (j.spec #>> '{engine,price_per_million_prompt_tokens}')::numeric AS prompt,
           (j.spec #>> '{engine,price_per_million_output_tokens}')::numeric AS output
) AS p;
COMMENT ON VIEW job_costs IS
    'One row a job: engine time, rows and tokens used, money spent.';
COMMENT ON COLUMN job_costs.estimated_tokens IS
    'Those of the tokens that were estimated, since the server did not count them.';
COMMENT ON COLUMN job_costs.cost_is_estimate IS 'Whether the cost is of estimated tokens, too.';

CREATE VIEW open_outages AS
SELECT j.id AS job, o.who, o.host, o.kind, o.pool, o.engine_key, o.why, o.since, o.until
FROM outages o JOIN jobs j
  ON (o.job_id = j.id AND j.state <> 'paused')
  OR (o.job_id IS NULL AND j.state = 'running' AND o.pool = j.pool AND o.engine_key = j.engine_key)
WHERE o.until > now() AND j.closed_at IS NULL;
COMMENT ON VIEW open_outages IS
    'One row for each outage that a job waits for now, by who waits.';

CREATE VIEW job_stalls AS
SELECT job, outages, children_waiting,
       children_waiting >= (
           SELECT count(*) FROM workers w JOIN jobs j ON w.pool = j.pool AND w.engine_key = j.engine_key
           WHERE j.id = job AND w.state IN ('ready', 'draining')
             AND w.seen_at > now() - interval '1 minute')
       OR (SELECT sum(rows_total - rows_done - rows_failed) FROM job_counters WHERE job_id = job) = 0
           AS stalled
FROM (
    SELECT job, count(*) AS outages, count(DISTINCT who) FILTER (WHERE engine_key IS NOT NULL)
           AS children_waiting
    FROM open_outages GROUP BY job
) AS waits;
COMMENT ON VIEW job_stalls IS
    'One row for each job with an open outage; stalled if all of its workers wait, or only its end does.';

CREATE VIEW job_pace AS
SELECT j.id AS job, w.workers, w.loading_seconds,
       coalesce(j.spec #>> '{engine,model}', j.spec #>> '{engine,callable}') AS model, j.remark,
       round(extract(epoch FROM now() - greatest(w.sign_at, c.committed_at))::numeric, 1)
           AS seconds_since_sign,
       CASE WHEN j.closed_at IS NOT NULL THEN j.worked_seconds END AS worked_seconds,
       round(r.rate::numeric, 3) AS rows_per_second,
       round(r.low::numeric, 3) AS rows_per_second_low,
       round(r.high::numeric, 3) AS rows_per_second_high,
       round((r.tokens / r.seconds)::numeric, 3) AS output_tokens_per_second,
       e.eta_seconds, e.eta_seconds_low, e.eta_seconds_high, coalesce(a.stalled, false) AS stalled
FROM jobs j
LEFT JOIN job_stalls a ON a.job = j.id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_total - rows_done - rows_failed), 0)::bigint AS rows_left,
           coalesce(sum(batches_pending + batches_queued + batches_leased), 0)::bigint AS batches_open
    FROM job_counters WHERE job_id = j.id
) AS o
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state IN ('ready', 'draining')
                              AND seen_at > now() - interval '1 minute') AS workers,
           CASE WHEN bool_and(state = 'loading')
                THEN extract(epoch FROM now() - min(started_at))::float8 END AS loading_seconds,
           max(seen_at) FILTER (WHERE EXISTS (
               SELECT FROM batches b
               WHERE b.owner = workers.id AND b.state = 'leased' AND b.job_id = j.id)) AS sign_at
    FROM workers
    WHERE pool = j.pool AND engine_key = j.engine_key AND state <> 'ended'
) AS w ON j.state IN ('running', 'paused')
LEFT JOIN LATERAL (
    SELECT ended_at AS committed_at FROM attempts
    WHERE job_id = j.id AND outcome IN ('done', 'split') ORDER BY ended_at DESC LIMIT 1
) AS c ON j.state IN ('running', 'paused')
LEFT JOIN LATERAL (
    WITH recent AS MATERIALIZED (
        -- The clock of Postgres may have been set back while a lease was open.
        SELECT ended_at, least(claimed_at, ended_at) AS claimed_at, worker_id, row_count, output_tokens
        FROM attempts
        WHERE job_id = j.id AND outcome IN ('done', 'split')
          AND ended_at > now() - interval '30 minutes' AND ended_at >= j.started_at
        ORDER BY ended_at DESC LIMIT 1000
    ), span AS (
        SELECT min(ended_at) AS first, max(ended_at) AS last, min(claimed_at) AS claimed,
               count(DISTINCT ended_at) AS commits
        FROM recent
    ), anchored AS MATERIALIZED (
        SELECT s.*, CASE WHEN s.commits >= 4 AND s.last - s.first > (s.first - s.claimed) / 2
                    THEN (SELECT max(ended_at) FROM recent
                          WHERE ended_at <= s.first + (s.last - s.first) / 5) END AS anchor
        FROM span s
    ), silent AS MATERIALIZED (
        -- Long after the last commit the time of the leases that are open counts, too: the oldest of each child.
        SELECT a.*, 3 * (a.last - a.claimed) / a.commits AS patience,
               CASE WHEN w.workers > 0 AND now() - a.last > 3 * (a.last - a.claimed) / a.commits THEN (
                   SELECT min(o.claimed_at)
                   FROM workers c CROSS JOIN LATERAL (
                       SELECT t.claimed_at
                       FROM batches b JOIN attempts t ON t.batch_id = b.id AND t.attempt = b.attempt
                       WHERE b.owner = c.id AND b.state = 'leased' AND b.job_id = j.id
                       ORDER BY b.id LIMIT 1
                   ) AS o
                   WHERE c.pool = j.pool AND c.engine_key = j.engine_key AND c.state <> 'ended'
               ) END AS leased_since
        FROM anchored a
    ), clocked AS MATERIALIZED (
        SELECT coalesce(s.anchor, s.claimed) AS since, s.anchor, s.leased_since,
               CASE WHEN now() - greatest(s.last, s.leased_since) > s.patience
                         AND s.leased_since IS NOT NULL
                    THEN now() ELSE s.last END AS until
        FROM silent s
    ), leases AS (
        SELECT k.since, greatest(e.claimed_at, k.since) AS begun, e.ended_at AS ended
        FROM clocked k JOIN recent e ON e.ended_at > k.since
        UNION ALL
        SELECT k.since, greatest(k.leased_since, k.since), now() FROM clocked k WHERE k.until = now()
    ), gaps AS MATERIALIZED (
        SELECT reached, begun, begun - reached AS gap
        FROM (SELECT begun, coalesce(max(ended) OVER (
                         ORDER BY begun ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), since)
                         AS reached
              FROM leases) AS ordered
        WHERE begun > reached
    ), counted AS MATERIALIZED (
        SELECT e.*, dense_rank() OVER (ORDER BY e.ended_at) AS number
        FROM clocked k JOIN recent e ON k.anchor IS NULL OR e.ended_at > k.anchor
    ), sums AS MATERIALIZED (
        SELECT sum(row_count) AS rows, sum(output_tokens) AS tokens,
               greatest((max(number) + 9) / 10, count(DISTINCT worker_id)) AS size
        FROM counted
    ), blocks AS (
        -- Successive commits, at most ten blocks, each of at least as many as there are children: children that
        -- commit together are one step. The last, incomplete one is left out.
        SELECT (c.number - 1) / s.size AS block, sum(c.row_count) AS rows, max(c.ended_at) AS ended
        FROM counted c, sums s
        GROUP BY (c.number - 1) / s.size, s.size HAVING max(c.number) - min(c.number) + 1 = s.size
    ), paces AS MATERIALIZED (
        SELECT b.rows / nullif(extract(epoch FROM b.ended - b.begun - coalesce((
                   SELECT sum(least(g.begun, b.ended) - greatest(g.reached, b.begun)) FROM gaps g
                   WHERE g.begun > b.begun AND g.reached < b.ended), interval '0')), 0) AS pace
        FROM (SELECT block, rows, ended,
                     lag(ended, 1, (SELECT since FROM clocked)) OVER (ORDER BY block) AS begun
              FROM blocks) AS b
    ), bounds AS (
        SELECT percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY pace::float8) AS deciles
        FROM paces HAVING count(pace) >= 4
    ), mean AS MATERIALIZED (
        SELECT s.rows, s.tokens,
               nullif(extract(epoch FROM k.until - k.since - (SELECT coalesce(sum(gap), interval '0')
                                                              FROM gaps)), 0)::float8 AS seconds
        FROM clocked k, sums s
    )
    SELECT m.tokens, m.seconds, m.rate,
           CASE WHEN b.deciles IS NOT NULL THEN least(b.deciles[1], m.rate) END AS low,
           CASE WHEN b.deciles IS NOT NULL THEN greatest(b.deciles[2], m.rate) END AS high
    FROM (SELECT *, rows / seconds AS rate FROM mean OFFSET 0) AS m LEFT JOIN bounds b ON true
) AS r ON j.state = 'running' AND NOT coalesce(a.stalled, false) AND o.batches_open > 0
LEFT JOIN LATERAL (
    SELECT round((o.rows_left / nullif(r.rate, 0))::numeric, 1) AS eta_seconds,
           round((o.rows_left / nullif(r.high, 0))::numeric, 1) AS eta_seconds_low,
           round((o.rows_left / nullif(r.low, 0))::numeric, 1) AS eta_seconds_high
) AS e ON w.workers > 0;
COMMENT ON VIEW job_pace IS
    'One row a job: its pace over the time in which somebody works on it, when it ends at that pace, who works.';

CREATE VIEW job_progress AS
SELECT j.id AS job, j.name, j.pool, j.priority, j.state AS status, j.reason,
       c.rows_total, c.rows_done, c.rows_failed,
       c.batches_pending + c.batches_queued + c.batches_leased + c.batches_done + c.batches_dead
           AS batches_total,
       c.batches_pending, c.batches_queued, c.batches_leased, c.batches_done, c.batches_dead,
       c.prompt_tokens, c.output_tokens, r.rows_per_second, r.rows_per_second_low,
       r.rows_per_second_high, r.output_tokens_per_second, r.eta_seconds, r.eta_seconds_low,
       r.eta_seconds_high,
       j.output_uri, j.created_at, j.started_at, j.finished_at, k.engine_seconds, k.cost, j.archived_at,
       k.cost_is_estimate, coalesce(u.done, 0)::bigint AS rows_done_uncommitted,
       coalesce(u.failed, 0)::bigint AS rows_failed_uncommitted,
       r.workers, r.loading_seconds, r.seconds_since_sign, r.worked_seconds, r.model, r.remark, r.stalled
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
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
           greatest(sum(rows_leased), 0) AS rows_leased
    FROM job_counters WHERE job_id = j.id
) AS c
JOIN job_pace r ON r.job = j.id
JOIN job_costs k ON k.job = j.id
LEFT JOIN LATERAL (
    -- A report may be late: no more rows are under way than are leased.
    SELECT least(s.done, c.rows_leased) AS done,
           least(s.failed, c.rows_leased - least(s.done, c.rows_leased)) AS failed
    FROM (
        SELECT coalesce(sum(s.done_uncommitted), 0) AS done,
               coalesce(sum(s.failed_uncommitted), 0) AS failed
        FROM job_spending s JOIN workers w ON w.id = s.worker_id
        WHERE s.job_id = j.id AND w.state <> 'ended'
    ) AS s
) AS u ON c.batches_leased > 0;
COMMENT ON VIEW job_progress IS
    'One row a job: what is done, how fast, when it ends. Rows failed are not among rows done.';
COMMENT ON COLUMN job_progress.cost_is_estimate IS
    'Whether the cost is of tokens, too, that were estimated, since the server did not count them.';

CREATE VIEW job_sharing AS
SELECT j.id AS job, s.rows_run, s.rows_shared, s.prompt_tokens_spent, s.cached_tokens,
       s.output_tokens_spent, s.reasoning_tokens
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(rows_shared), 0)::bigint AS rows_shared,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens_spent,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens_spent,
           coalesce(sum(reasoning_tokens), 0)::bigint AS reasoning_tokens
    FROM job_spending WHERE job_id = j.id
) AS s;
COMMENT ON VIEW job_sharing IS
    'One row a job: rows with the answer of another, prompt tokens that a cache had, tokens of thoughts.';

CREATE VIEW job_answers AS
SELECT j.id AS job, l.lengths, c.labels
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(answers ORDER BY place), '{}') AS lengths
    FROM (SELECT u.place, sum(u.answers)::bigint AS answers
          FROM job_spending s
          CROSS JOIN LATERAL unnest(s.answer_lengths) WITH ORDINALITY AS u (answers, place)
          WHERE s.job_id = j.id GROUP BY u.place) AS summed
) AS l CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(named.label, summed.answers) AS labels
    FROM (SELECT u.place, sum(u.answers)::bigint AS answers
          FROM job_spending s
          CROSS JOIN LATERAL unnest(s.label_counts) WITH ORDINALITY AS u (answers, place)
          WHERE s.job_id = j.id GROUP BY u.place) AS summed
    JOIN jsonb_array_elements_text(nullif(j.spec #> '{task,output,choice}', 'null'))
         WITH ORDINALITY AS named (label, place) USING (place)
) AS c;
COMMENT ON VIEW job_answers IS
    'One row a job: committed answers by the length that they have, and by the label that they name.';

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
COMMENT ON VIEW failed_rows IS
    'One row for each input row that has an error in place of an answer.';

CREATE VIEW machines_set_aside AS
SELECT pool, engine_key, host, supervisor, concern, failures, failed_since,
       round(extract(epoch FROM retry_at - now())::numeric, 1) AS seconds_left, error,
       public_error
FROM refusals WHERE retry_at > now();
COMMENT ON VIEW machines_set_aside IS
    'One row for each machine and engine that it could not load and does not try again yet.';

CREATE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid,
       CASE WHEN s.worker_id IS NULL THEN w.state ELSE 'lost' END AS state,
       w.engine, w.engine_version, w.engine_key, w.window_rows,
       coalesce(l.batches, 0) AS batches_leased, coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error,
       (SELECT count(*) FROM machines_set_aside m
        WHERE m.pool = w.pool AND m.supervisor = w.supervisor) AS engines_set_aside
FROM workers w
LEFT JOIN slots s ON s.worker_id = w.id AND s.state = 'lost'
                 AND s.seen_at > now() - interval '1 minute'
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended' OR s.worker_id IS NOT NULL;
COMMENT ON VIEW worker_status IS
    'One row a living worker child: its engine and what it holds; lost: a killed child that the '
    'kernel does not let go, and whose slot nobody can use.';

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

CREATE VIEW pool_demand AS
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

CREATE VIEW cordoned_slots AS
SELECT s.supervisor, s.slot, bool_or(c.drains) AS drains, min(c.since) AS since
FROM slots s JOIN cordons c
  ON (c.kind, c.name) IN (('host', s.host), ('worker', s.supervisor),
                          ('worker', concat_ws('/', s.supervisor, s.slot)))
GROUP BY s.supervisor, s.slot;
COMMENT ON VIEW cordoned_slots IS
    'One row for each known slot that takes no new work.';

CREATE VIEW job_generations AS
SELECT g.job_id AS job, g.number, g.source, g.first_file, g.stop_file, g.first_row, g.stop_row,
       g.first_seq, g.stop_seq, g.planned_at, g.finished_at,
       -- Each by the index of its state: one scan for all would read every batch that is done.
       EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'pending'
               AND b.seq >= g.first_seq AND b.seq < g.stop_seq)
       OR EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'queued'
                  AND b.seq >= g.first_seq AND b.seq < g.stop_seq)
       OR EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'leased'
                  AND b.seq >= g.first_seq AND b.seq < g.stop_seq) AS is_open
FROM generations g;
COMMENT ON VIEW job_generations IS
    'One row for each submit and append of a job that grew or is watched: its files, rows and batches '
    '(from the first to before the stop), and whether a batch of it is open.';
