"""What workers and reapers wait for: storage, a rate limit, a remote server."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# Workers and reapers of an older release tell nothing, so compatible_from stays as it is. No key
# points to jobs: a process that tells of an outage waits for no lock of a job, and old outages lapse.
TABLE = """
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
"""


def upgrade() -> None:
    """Adds a table."""
    op.execute(TABLE)
