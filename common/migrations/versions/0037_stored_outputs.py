"""Jobs whose output lies in the store of the server: which folder they may use, and how many bytes count."""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

# Code of an older release neither writes nor reads them, so compatible_from stays as it is. What such a release
# closes keeps its last count.
COLUMNS = """
ALTER TABLE jobs ADD COLUMN outputs text, ADD COLUMN stored_bytes bigint;
COMMENT ON COLUMN jobs.outputs IS
    'The folder of the server with the outputs of the tenant, which the job may use, too.';
COMMENT ON COLUMN jobs.stored_bytes IS
    'Bytes of its live parts when it was closed last, 0 before; null where its output is not in the store.';
CREATE INDEX jobs_stored ON jobs (tenant) WHERE stored_bytes IS NOT NULL;
"""


def upgrade() -> None:
    """Adds two columns, and an index for the sum of a tenant."""
    op.execute(COLUMNS)
