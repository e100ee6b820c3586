"""The roots under which a job was admitted, which stay with it."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# Code of an older release neither writes nor reads them, so compatible_from stays as it is.
COLUMNS = """
ALTER TABLE jobs ADD COLUMN roots text[], ADD COLUMN uploads text;
COMMENT ON COLUMN jobs.roots IS
    'The roots of its tenant when the job was admitted; null where the job is held to none.';
COMMENT ON COLUMN jobs.uploads IS
    'The folder of the server with the uploads of the tenant, which the job may read, too.';
"""


def upgrade() -> None:
    """Adds two columns."""
    op.execute(COLUMNS)
