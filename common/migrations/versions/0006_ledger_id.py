"""Each ledger has an id of its own, which the owner markers of output directories name."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Older code does not read the column, so ledger_meta.compatible_from stays as it is.
COLUMN = """
ALTER TABLE ledger_meta ADD COLUMN ledger_id uuid NOT NULL DEFAULT gen_random_uuid();
COMMENT ON COLUMN ledger_meta.ledger_id IS
    'Random, made once: which ledger this is. A dump and its restore keep it.';
"""


def upgrade() -> None:
    """Adds the column with a random value."""
    op.execute(COLUMN)
