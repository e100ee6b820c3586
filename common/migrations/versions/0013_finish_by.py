"""When a job should be done."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Older supervisors and reapers plan as if no job had a deadline: compatible_from stays.
COLUMN = """
ALTER TABLE jobs ADD COLUMN finish_by timestamptz;
COMMENT ON COLUMN jobs.finish_by IS
    'When the job should be done (limits.finish_by); null without a deadline.';
CREATE INDEX jobs_with_deadline ON jobs (pool) WHERE finish_by IS NOT NULL AND state = 'running';
"""


def upgrade() -> None:
    """Adds a column, and an index of the running jobs that have a deadline."""
    op.execute(COLUMN)
