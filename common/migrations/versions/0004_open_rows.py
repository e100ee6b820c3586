"""Spending is what children computed, committed or not; and which of their rows are still leased."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Children of an older release add their commits to rows of their own, so that
# ledger_meta.compatible_from stays as it is.
TABLE = """
ALTER TABLE job_spending ADD COLUMN rows_open bigint NOT NULL DEFAULT 0;
COMMENT ON TABLE job_spending IS
    'One row a job and child: running totals of what the child used, committed or not.';
COMMENT ON COLUMN job_spending.rows_open IS
    'Rows of rows_run whose batches the child still held at its last report.';
"""


def upgrade() -> None:
    """Adds a column."""
    op.execute(TABLE)
