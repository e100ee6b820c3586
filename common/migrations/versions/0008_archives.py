"""Where the batches of a closed job are, in Postgres or in files; and when the tables are vacuumed."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Older code may use these tables until the first job is archived: `archives.leave` says so then.
TABLE = """
CREATE TABLE job_archives (
    job_id bigint PRIMARY KEY,
    state text NOT NULL DEFAULT 'kept'
        CHECK (state IN ('kept', 'leaving', 'archived', 'returning')),
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
"""

# Rows that come back were never taken from the counters.
TRIGGER = """
DROP TRIGGER batches_inserted ON batches;
CREATE TRIGGER batches_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (current_setting('nightshift.bringing_back', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION count_inserted_batches();
"""

# A share of a table that grows for ever would let claims walk over ever more dead index entries: at
# 10 M batches 1 % are those of 33,000 batches, 20,000 row versions those of 6,700.
AUTOVACUUM = """
ALTER TABLE batches SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
"""

DEFINITION = "SELECT pg_get_viewdef('job_progress'::regclass)"


def upgrade() -> None:
    """Adds the table, and a column at the end of job_progress; sets when batches are vacuumed."""
    op.execute(TABLE)
    op.execute(TRIGGER)
    op.execute(AUTOVACUUM)
    progress = op.get_bind().exec_driver_sql(DEFINITION).scalar_one().strip().rstrip(";")
    op.execute(
        f"""
        CREATE OR REPLACE VIEW job_progress AS
        SELECT p.*, k.archived_at
        FROM ({progress}) AS p LEFT JOIN job_archives k ON k.job_id = p.job
        """
    )
