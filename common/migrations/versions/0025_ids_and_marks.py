"""How many ids of an output differ, and in how many rows of a file half of a character is replaced."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# Reapers of an older release write neither column, so compatible_from stays as it is.
COLUMNS = """
ALTER TABLE jobs ADD COLUMN id_counts jsonb;
COMMENT ON COLUMN jobs.id_counts IS
    'Of a closed job: rows with an id, how many ids differ (null: not counted), and one that repeats.';
ALTER TABLE input_files ADD COLUMN rows_marked bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN input_files.rows_marked IS
    'Rows of a file of JSON lines with half of a character, which is read as U+FFFD.';
"""


def upgrade() -> None:
    """Adds two columns."""
    op.execute(COLUMNS)
