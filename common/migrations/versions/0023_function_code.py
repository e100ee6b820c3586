"""Which code a function had when a child loaded it, and which code made the answers of a closed job."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# Children and reapers of an older release write neither column, so compatible_from stays as it is.
COLUMNS = """
ALTER TABLE workers ADD COLUMN code jsonb;
COMMENT ON COLUMN workers.code IS
    'SHA-256 of each file of a function as the child loaded it, by its path below its folder.';
ALTER TABLE jobs ADD COLUMN code jsonb;
COMMENT ON COLUMN jobs.code IS
    'The different values of workers.code of the children that finished batches of the closed job.';
"""


def upgrade() -> None:
    """Adds two columns."""
    op.execute(COLUMNS)
