"""Batches of the OpenAI API: what all rows may use, and from where they were asked for."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE api_batches ADD COLUMN estimated_tokens bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN api_batches.estimated_tokens IS
    'Tokens that all rows of the file may use, by an estimate.';
ALTER TABLE api_batches ADD COLUMN created_from text NOT NULL DEFAULT '';
COMMENT ON COLUMN api_batches.created_from IS
    'Address from which the batch was asked for; the audit log names it beside created_by.';
UPDATE api_batches SET estimated_tokens = reserved_tokens WHERE reserved_tokens > 0;
"""


def upgrade() -> None:
    """Adds two columns; of batches that run, all rows may use what is reserved."""
    op.execute(COLUMNS)
