"""Tenants and their keys; files, uploads and batches of the OpenAI Batch API; webhooks."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Older workers and reapers neither read nor write any of this: ledger_meta.compatible_from stays.
# Their plans share between jobs alone, since no job of theirs has a tenant.
TENANTS = """
CREATE TABLE tenants (
    name text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    weight double precision NOT NULL DEFAULT 1 CHECK (weight > 0 AND weight <= 1000),
    max_priority integer NOT NULL DEFAULT 0,
    pools text[],
    max_rows bigint CHECK (max_rows >= 0),
    max_tokens bigint CHECK (max_tokens >= 0),
    budget numeric CHECK (budget >= 0),
    budget_from timestamptz NOT NULL DEFAULT now(),
    spent numeric NOT NULL DEFAULT 0,
    roots text[] NOT NULL DEFAULT '{}',
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

ALTER TABLE jobs ADD COLUMN tenant text NOT NULL DEFAULT '';
COMMENT ON COLUMN jobs.tenant IS 'Who submitted the job by HTTP; empty for the command line.';
ALTER TABLE jobs ADD COLUMN counted_cost numeric NOT NULL DEFAULT 0;
COMMENT ON COLUMN jobs.counted_cost IS 'What of its cost stands in tenants.spent.';
CREATE INDEX jobs_by_tenant ON jobs (tenant, id) WHERE tenant <> '';
"""

FILES = """
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
    CHECK (state <> 'ready' OR (purpose IS NOT NULL AND bytes IS NOT NULL))
);
CREATE INDEX api_files_listed ON api_files (tenant, seq) WHERE state = 'ready';
CREATE INDEX api_files_receiving ON api_files (touched_at) WHERE state = 'receiving';
CREATE INDEX api_files_expiring ON api_files (expires_at)
    WHERE state = 'ready' AND expires_at IS NOT NULL;
COMMENT ON TABLE api_files IS 'Files of the OpenAI API: uploads and results of batches.';
COMMENT ON COLUMN api_files.state IS
    'receiving: bytes come in, nobody sees the file; deleted: its bytes may still be there.';
COMMENT ON COLUMN api_files.seq IS 'The order of lists.';
COMMENT ON COLUMN api_files.touched_at IS
    'Last sign of the process that writes a file in state receiving.';

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
CREATE INDEX api_uploads_pending ON api_uploads (expires_at) WHERE state = 'pending';
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
COMMENT ON TABLE api_uploads IS 'Uploads in parts; a completed one is a file.';
"""

BATCHES = """
CREATE TABLE api_batches (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    state text NOT NULL DEFAULT 'validating' CHECK (state IN
        ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling',
         'cancelled')),
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
CREATE UNIQUE INDEX api_batches_idempotency ON api_batches (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX api_batches_repeats ON api_batches (tenant, request_hash, created_at);
CREATE INDEX api_batches_listed ON api_batches (tenant, seq);
CREATE INDEX api_batches_open ON api_batches (seq)
    WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX api_batches_input ON api_batches (input_file_id);
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
"""

WEBHOOKS = """
CREATE TABLE webhook_endpoints (
    id text PRIMARY KEY,
    tenant text NOT NULL REFERENCES tenants,
    url text NOT NULL,
    events text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz
);
CREATE INDEX webhook_endpoints_of ON webhook_endpoints (tenant) WHERE removed_at IS NULL;
COMMENT ON TABLE webhook_endpoints IS
    'Where a tenant wants to hear of the end of its batches. Secrets are derived, not stored.';

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
CREATE INDEX webhook_outbox_open ON webhook_outbox (next_try_at)
    WHERE delivered_at IS NULL AND given_up_at IS NULL;
COMMENT ON TABLE webhook_outbox IS
    'One row an event and endpoint, written in the transaction that ends the batch.';
"""


def upgrade() -> None:
    """Adds the tables, and the tenant of a job."""
    for statement in (TENANTS, FILES, BATCHES, WEBHOOKS):
        op.execute(statement)
