"""Tuned engine arguments: what `nightshift tune` kept, and what the slots of a pool are made of."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE tunings (
    model text NOT NULL,
    task text NOT NULL,
    hardware text NOT NULL,
    args jsonb NOT NULL,
    rows_per_second double precision NOT NULL,
    rounds integer NOT NULL DEFAULT 1,
    tuned_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, task, hardware)
);
COMMENT ON TABLE tunings IS
    'The arguments of an engine with which its model was fastest for a kind of task on some hardware.';
COMMENT ON COLUMN tunings.rounds IS 'How often the model was tuned: each round has outputs of its own.';
ALTER TABLE slots ADD COLUMN hardware text;
COMMENT ON COLUMN slots.hardware IS
    'The GPUs of the slot, or the cores of its machine; null for a supervisor of an earlier release.';
"""


def upgrade() -> None:
    """Adds a table and a column."""
    op.execute(TABLES)
