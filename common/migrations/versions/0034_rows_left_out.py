"""How many rows of an input file the condition of the job leaves out."""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

# Older releases know no job with a condition, so compatible_from stays as it is.
COLUMN = """
ALTER TABLE input_files ADD COLUMN rows_left_out bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN input_files.rows_left_out IS
    'Rows of the file that input.where leaves out: they have numbers, and stand in no batch.';
"""


def upgrade() -> None:
    """Adds the column."""
    op.execute(COLUMN)
