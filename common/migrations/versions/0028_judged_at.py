"""Since when the rows of a job are judged, so that a resume counts refusals in the same words anew."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

# Children of an older release judge the share of failed rows alone: compatible_from stays as it is.
COLUMN = """
ALTER TABLE jobs ADD COLUMN judged_at timestamptz;
COMMENT ON COLUMN jobs.judged_at IS
    'Since when its failed rows count towards a pause: its last resume or retry; null: its submit.';
"""


def upgrade() -> None:
    """Adds the column."""
    op.execute(COLUMN)
