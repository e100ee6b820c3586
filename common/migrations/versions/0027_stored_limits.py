"""Tenants: how many files they may have stored, with how many bytes."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE tenants ADD COLUMN max_files bigint CHECK (max_files >= 0);
COMMENT ON COLUMN tenants.max_files IS
    'Files and pending uploads of the HTTP API that it may have at once; null: no limit.';
ALTER TABLE tenants ADD COLUMN max_bytes bigint CHECK (max_bytes >= 0);
COMMENT ON COLUMN tenants.max_bytes IS
    'Bytes of these files and uploads; null: no limit.';
CREATE INDEX api_uploads_of_tenant ON api_uploads (tenant) WHERE state = 'pending';
CREATE INDEX api_files_kept ON api_files (tenant) WHERE state <> 'deleted';
"""


def upgrade() -> None:
    """Adds two limits and what counts against them is looked up by."""
    op.execute(COLUMNS)
