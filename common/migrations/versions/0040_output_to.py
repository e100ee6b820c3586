"""Which job has the output directory that a failed job gave up."""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# An older release would let such a job run again, into the directory that its row names now, which nobody has. So
# compatible_from stays as it is.
COLUMN = """
ALTER TABLE jobs ADD COLUMN output_to bigint,
    ADD COLUMN first_attempt integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN jobs.first_attempt IS
    'The number behind which the attempts of batches begin: the last one of the job that had the output directory.';
COMMENT ON COLUMN jobs.output_to IS
    'The job that got the output directory of this failed one, which never runs again; null for all others.';
"""


def upgrade() -> None:
    """Adds the columns."""
    op.execute(COLUMN)
