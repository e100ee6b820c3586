-- The HTTP API: keys, files, batches and webhooks.

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
COMMENT ON TABLE api_files IS 'Files of the OpenAI API: inputs that clients sent, and results of batches.';
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
CREATE INDEX api_files_kept ON api_files (tenant)
    WHERE state <> 'deleted';

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
    estimated_tokens bigint NOT NULL DEFAULT 0,
    created_by text,
    created_from text NOT NULL DEFAULT '',
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
    request_hash bytea NOT NULL
);
COMMENT ON TABLE api_batches IS
    'Batches of the OpenAI API; one that is valid is a job of kind requests. States are the API''s.';
COMMENT ON COLUMN api_batches.options IS 'What the client sent under "nightshift".';
COMMENT ON COLUMN api_batches.ends_as IS
    'Set when its job is cancelled for the batch: how the batch ends once its files are written.';
COMMENT ON COLUMN api_batches.reserved_rows IS
    'Rows that count against tenants.max_rows; given back at the end.';
COMMENT ON COLUMN api_batches.estimated_tokens IS
    'Tokens that all rows of the file may use, by an estimate.';
COMMENT ON COLUMN api_batches.created_from IS
    'Address from which the batch was asked for; the audit log names it beside created_by.';
COMMENT ON COLUMN api_batches.request_hash IS
    'Of the body of the create: a repeat of the client gives the batch of its first try.';
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
