"""An index of the few leases that did not end well, so that a page of a job with many shows the latest."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# Leases that ended well have attempts_recent; leases under way are found by their batches.
STATEMENT = """
CREATE INDEX attempts_unhappy ON attempts (job_id, ended_at DESC)
    WHERE outcome IN ('failed', 'released', 'lost');
"""


def upgrade() -> None:
    """Adds the index."""
    op.execute(STATEMENT)
