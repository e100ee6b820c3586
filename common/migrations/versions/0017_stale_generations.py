"""How often a generation changed after its rows were done, so that no stale file about it stays."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

COLUMN = """
ALTER TABLE generations ADD COLUMN reopened integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN generations.reopened IS
    'How often rows ran again or a part got another name: the file about a generation that was begun '
    'before is stale.';
"""


def upgrade() -> None:
    """Adds a column."""
    op.execute(COLUMN)
