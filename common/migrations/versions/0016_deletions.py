"""Jobs that somebody deletes: what is left of them goes in pieces."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# An older reaper leaves such a job alone: job_archives.held_until is infinity. An older `retry` does not
# look here: upgrade the clients before jobs are deleted.
TABLE = """
CREATE TABLE deletions (
    job_id bigint PRIMARY KEY,
    asked_at timestamptz NOT NULL DEFAULT now(),
    output boolean NOT NULL
);
COMMENT ON TABLE deletions IS
    'Closed jobs that are being deleted; the row goes with the last row of its job.';
COMMENT ON COLUMN deletions.output IS 'The files of the job in its output directory go, too.';
"""


def upgrade() -> None:
    """Adds the table."""
    op.execute(TABLE)
