"""Why a new file of a watched input waits, where it is not for the second look."""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

# Reapers of older releases give no reason to a file that waits, so compatible_from stays as it is.
REASONS = """
ALTER TABLE unplanned_files DROP CONSTRAINT unplanned_files_check;
ALTER TABLE unplanned_files ADD CONSTRAINT unplanned_files_check CHECK (
    CASE state WHEN 'refused' THEN why IS NOT NULL WHEN 'waiting' THEN true ELSE why IS NULL END);
COMMENT ON COLUMN unplanned_files.why IS
    'Why the file is refused, or why one that two looks saw unchanged still waits.';
"""


def upgrade() -> None:
    """Lets a file that waits have a reason."""
    op.execute(REASONS)
