"""Control without locks on the job: an index of waiting batches that still have their last owner."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Few batches are in the index: those whose lease ended without a commit, until their next claim.
# Older code must leave: an older reaper sweeps a cancelled job without taking the owners first, and
# relies on a lock of the job's row that newer commits do not take.
STATEMENTS = """
CREATE INDEX batches_owned ON batches (job_id, id)
    WHERE state IN ('pending', 'queued') AND owner IS NOT NULL;
COMMENT ON COLUMN batches.owner IS
    'Who claimed it last; while the batch waits, that child may still commit it late. Null once a '
    'retry, a halving or the end of the job took that right.';
UPDATE ledger_meta SET compatible_from = 5;
"""


def upgrade() -> None:
    """Adds the index and asks older processes to leave."""
    op.execute(STATEMENTS)
