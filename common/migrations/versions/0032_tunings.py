"""What was measured of arguments that may change answers, beside the arguments that a tuning keeps."""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# Older releases read and write the other columns alone: compatible_from stays as it is.
COLUMN = """
ALTER TABLE tunings ADD COLUMN detail jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN tunings.detail IS
    'Which of the arguments may change answers, and how far their answers agreed with those of the spec.';
"""


def upgrade() -> None:
    """Adds the column."""
    op.execute(COLUMN)
