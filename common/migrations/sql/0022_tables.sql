-- The tables of the ledger at migration 0022, in the order in which work goes through them. Later steps are
-- files in versions/.

CREATE TABLE ledger_meta (
    single boolean DEFAULT true PRIMARY KEY CHECK (single),
    compatible_from integer NOT NULL,
    ledger_id uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON TABLE ledger_meta IS 'The oldest code (its schema number) that may use these tables.';
COMMENT ON COLUMN ledger_meta.ledger_id IS
    'Random, made once: which ledger this is. A dump and its restore keep it.';

INSERT INTO ledger_meta (compatible_from) VALUES (5);

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
    requeue_below bigint,
    finish_by timestamptz,
    worked_seconds double precision,
    remark text,
    tenant text NOT NULL DEFAULT '',
    counted_cost numeric NOT NULL DEFAULT 0,
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
    PRIMARY KEY (job_id, file_index)
);
COMMENT ON COLUMN input_files.arranged IS
    'The copy from which the rows of this file and of its neighbours are read, in another order.';

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

CREATE TABLE job_watches (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    every_seconds integer NOT NULL CHECK (every_seconds > 0),
    next_look_at timestamptz NOT NULL DEFAULT now(),
    looking_until timestamptz,
    looked_at timestamptz,
    files_listed bigint,
    listing text,
    error text
);
COMMENT ON TABLE job_watches IS 'Jobs whose input is looked at again and again (input.watch).';
COMMENT ON COLUMN job_watches.looking_until IS
    'Until then one reaper looks: a courtesy, since two looks at once do no harm.';
COMMENT ON COLUMN job_watches.listing IS
    'Hash of the last listing: an equal one needs no comparison with the files of the job.';
COMMENT ON COLUMN job_watches.error IS 'Why the last look came to nothing.';

CREATE TABLE unplanned_files (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    uri text NOT NULL,
    size bigint NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'refused', 'changed', 'gone')),
    seen_at timestamptz NOT NULL,
    why text,
    CHECK ((state = 'refused') = (why IS NOT NULL)),
    PRIMARY KEY (job_id, uri)
);
COMMENT ON TABLE unplanned_files IS
    'Files of watched inputs that are not as planned: new ones that wait for a second equal look or do not fit, and planned ones that changed or are gone.';
COMMENT ON COLUMN unplanned_files.seen_at IS 'The look that first saw the file with these facts.';

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
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    PRIMARY KEY (batch_id, attempt)
) WITH (autovacuum_vacuum_scale_factor=0.05);
COMMENT ON TABLE attempts IS 'One row a lease: who held it, how it was woken, how it ended.';
COMMENT ON COLUMN attempts.engine_microseconds IS
    'Engine time of the job that this commit accounted for, since the one before it.';
CREATE INDEX attempts_recent ON attempts (job_id, ended_at DESC)
    WHERE outcome IN ('done', 'split');
CREATE INDEX attempts_unhappy ON attempts (job_id, ended_at DESC)
    WHERE outcome IN ('failed', 'released', 'lost');

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

CREATE TABLE job_archives (
    job_id bigint PRIMARY KEY,
    state text NOT NULL DEFAULT 'kept' CHECK (state IN ('kept', 'leaving', 'archived', 'returning')),
    generation integer NOT NULL DEFAULT 0,
    held_until timestamptz,
    needed_at timestamptz,
    archived_at timestamptz,
    files jsonb,
    CHECK ((state = 'kept') = (files IS NULL)),
    CHECK ((state = 'kept') = (archived_at IS NULL))
);
COMMENT ON TABLE job_archives IS
    'Closed jobs whose batches, attempts and row errors were archived or read: where these are.';
COMMENT ON COLUMN job_archives.generation IS
    'The fence: rises each time that files are written, and stands in their names.';
COMMENT ON COLUMN job_archives.held_until IS 'Until then one reaper has the job to itself.';
COMMENT ON COLUMN job_archives.needed_at IS 'When a command last read the batches of the job.';
COMMENT ON COLUMN job_archives.files IS 'Table, name, rows, bytes and SHA-256 of each file.';

CREATE TABLE deletions (
    job_id bigint PRIMARY KEY,
    asked_at timestamptz NOT NULL DEFAULT now(),
    output boolean NOT NULL
);
COMMENT ON TABLE deletions IS
    'Closed jobs that are being deleted; the row goes with the last row of its job.';
COMMENT ON COLUMN deletions.output IS 'The files of the job in its output directory go, too.';

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
    error text,
    code_version text
);
COMMENT ON TABLE workers IS 'One row a boot of a worker child; the id is the owner of its leases.';
COMMENT ON COLUMN workers.busy_at IS 'When a heartbeat last found a batch in its hands.';
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
    'The GPUs of the slot, or the cores of its machine; null for a supervisor of an earlier release.';
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
    concern text NOT NULL DEFAULT 'machine' CHECK (concern IN ('worker', 'machine', 'job')),
    passes boolean NOT NULL DEFAULT true,
    failed_since timestamptz NOT NULL DEFAULT now(),
    failed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool, engine_key, supervisor)
);
COMMENT ON TABLE refusals IS
    'Machines that could not load an engine: they do not try again before retry_at.';
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

CREATE TABLE tunings (
    model text NOT NULL,
    task text NOT NULL,
    hardware text NOT NULL,
    args jsonb NOT NULL,
    rows_per_second double precision NOT NULL,
    rounds integer NOT NULL DEFAULT 1,
    tuned_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, task, hardware)
);
COMMENT ON TABLE tunings IS
    'The arguments of an engine with which its model was fastest for a kind of task on some hardware.';
COMMENT ON COLUMN tunings.rounds IS
    'How often the model was tuned: each round has outputs of its own.';

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
COMMENT ON COLUMN tenants.budget IS
    'What its jobs may cost together since budget_from, in the currency of the prices; null: no limit.';
COMMENT ON COLUMN tenants.spent IS
    'What its jobs that are closed have cost since budget_from, less what its open ones had cost before.';
COMMENT ON COLUMN tenants.roots IS 'Prefixes of the URIs that its specs may read and write.';
COMMENT ON COLUMN tenants.callables IS 'Whether its specs may name functions.';
COMMENT ON COLUMN tenants.remotes IS 'Whether its specs may name a base_url.';

CREATE TABLE api_keys (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'user', 'operator')),
    hash bytea NOT NULL UNIQUE,
    hint text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at timestamptz
);
COMMENT ON TABLE api_keys IS 'Keys of the HTTP API; the key itself is nowhere.';
COMMENT ON COLUMN api_keys.hash IS 'SHA-256 of the key, which is 256 random bits.';
COMMENT ON COLUMN api_keys.hint IS 'How the key begins and ends, for people who look for one.';
COMMENT ON COLUMN api_keys.used_at IS 'When the key was last used, to a minute.';

CREATE TABLE api_files (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    state text NOT NULL DEFAULT 'receiving' CHECK (state IN ('receiving', 'ready', 'deleted')),
    purpose text,
    filename text,
    bytes bigint,
    uri text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    touched_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((state <> 'ready') OR ((purpose IS NOT NULL) AND (bytes IS NOT NULL)))
);
COMMENT ON TABLE api_files IS 'Files of the OpenAI API: uploads and results of batches.';
COMMENT ON COLUMN api_files.seq IS 'The order of lists.';
COMMENT ON COLUMN api_files.state IS
    'receiving: bytes come in, nobody sees the file; deleted: its bytes may still be there.';
COMMENT ON COLUMN api_files.touched_at IS
    'Last sign of the process that writes a file in state receiving.';
CREATE INDEX api_files_listed ON api_files (tenant, seq)
    WHERE state = 'ready';
CREATE INDEX api_files_receiving ON api_files (touched_at)
    WHERE state = 'receiving';
CREATE INDEX api_files_expiring ON api_files (expires_at)
    WHERE (state = 'ready') AND (expires_at IS NOT NULL);

CREATE TABLE api_uploads (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    state text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'completed', 'cancelled', 'expired')),
    purpose text NOT NULL,
    filename text NOT NULL,
    mime_type text NOT NULL,
    bytes bigint NOT NULL,
    expires_after_seconds integer,
    file_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE api_uploads IS 'Uploads in parts; a completed one is a file.';
CREATE INDEX api_uploads_pending ON api_uploads (expires_at)
    WHERE state = 'pending';

CREATE TABLE api_upload_parts (
    id text PRIMARY KEY,
    upload_id text NOT NULL REFERENCES api_uploads ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'receiving' CHECK (state IN ('receiving', 'ready')),
    bytes bigint,
    uri text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    touched_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX api_upload_parts_of ON api_upload_parts (upload_id);

CREATE TABLE api_batches (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    state text NOT NULL DEFAULT 'validating'
        CHECK (state IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
    endpoint text NOT NULL,
    input_file_id text NOT NULL,
    completion_window text NOT NULL,
    metadata jsonb,
    output_expires_seconds integer,
    options jsonb NOT NULL DEFAULT '{}',
    ends_as text CHECK (ends_as IN ('expired', 'cancelled')),
    job_id bigint UNIQUE,
    model text,
    errors jsonb,
    output_file_id text,
    error_file_id text,
    rows_total bigint NOT NULL DEFAULT 0,
    rows_completed bigint NOT NULL DEFAULT 0,
    rows_failed bigint NOT NULL DEFAULT 0,
    usage jsonb,
    reserved_rows bigint NOT NULL DEFAULT 0,
    reserved_tokens bigint NOT NULL DEFAULT 0,
    created_by text,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    expired_at timestamptz,
    cancelling_at timestamptz,
    cancelled_at timestamptz,
    idempotency_key text,
    request_hash bytea NOT NULL,
    held_by text,
    held_until timestamptz
);
COMMENT ON TABLE api_batches IS
    'Batches of the OpenAI API; one that is valid is a job of kind requests. States are the API''s.';
COMMENT ON COLUMN api_batches.options IS 'What the client sent under "nightshift".';
COMMENT ON COLUMN api_batches.ends_as IS
    'Set when its job is cancelled for the batch: how the batch ends once its files are written.';
COMMENT ON COLUMN api_batches.reserved_rows IS
    'Rows that count against tenants.max_rows; given back at the end.';
COMMENT ON COLUMN api_batches.request_hash IS
    'Of the body of the create: a repeat of the client gives the batch of its first try.';
COMMENT ON COLUMN api_batches.held_by IS
    'Reaper that validates or finalizes the batch now, until held_until.';
CREATE UNIQUE INDEX api_batches_idempotency ON api_batches (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX api_batches_repeats ON api_batches (tenant, request_hash, created_at);
CREATE INDEX api_batches_listed ON api_batches (tenant, seq);
CREATE INDEX api_batches_open ON api_batches (seq)
    WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX api_batches_input ON api_batches (input_file_id);

CREATE TABLE webhook_endpoints (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    url text NOT NULL,
    events text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz
);
COMMENT ON TABLE webhook_endpoints IS
    'Where a tenant wants to hear of the end of its batches. Secrets are derived, not stored.';
CREATE INDEX webhook_endpoints_of ON webhook_endpoints (tenant)
    WHERE removed_at IS NULL;

CREATE TABLE webhook_outbox (
    id text PRIMARY KEY,
    endpoint_id text NOT NULL REFERENCES webhook_endpoints,
    event text NOT NULL,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    next_try_at timestamptz NOT NULL DEFAULT now(),
    tries integer NOT NULL DEFAULT 0,
    delivered_at timestamptz,
    given_up_at timestamptz,
    error text
);
COMMENT ON TABLE webhook_outbox IS
    'One row an event and endpoint, written in the transaction that ends the batch.';
CREATE INDEX webhook_outbox_open ON webhook_outbox (next_try_at)
    WHERE (delivered_at IS NULL) AND (given_up_at IS NULL);
