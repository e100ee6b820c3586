"""Which reapers live, and what the GPUs of a slot do: what people look at who have no shell there."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# Older reapers beat nowhere, and older supervisors report no figures: compatible_from stays.
TABLES = """
CREATE TABLE reapers (
    name text PRIMARY KEY,
    host text NOT NULL,
    code_version text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE reapers IS 'One row a living reaper, written every few seconds; for those who look.';

ALTER TABLE slots ADD COLUMN gpu_figures jsonb;
COMMENT ON COLUMN slots.gpu_figures IS
    'Of each GPU of the slot: gpu, busy (0 to 1), memory_used and memory_total (bytes), as last read.';
"""


def upgrade() -> None:
    """Adds a table and a column."""
    op.execute(TABLES)
