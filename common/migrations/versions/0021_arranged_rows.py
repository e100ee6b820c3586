"""Arranged inputs: the copy that has the rows of files in another order, and what a cache keeps."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# Older workers cannot read an arranged copy. The first submit of an arranged job raises
# ledger_meta.compatible_from, as the first archive does.
COLUMNS = """
ALTER TABLE input_files ADD COLUMN arranged text;
COMMENT ON COLUMN input_files.arranged IS
    'The copy from which the rows of this file and of its neighbours are read, in another order.';
ALTER TABLE engines ADD COLUMN cache_tokens bigint;
COMMENT ON COLUMN engines.cache_tokens IS
    'Tokens that the prefix cache keeps, by the last load: 0 without one, null where that is not known.';
"""

INDEX = "CREATE INDEX row_errors_of_batch ON row_errors (batch_id);"
# The rows of an arranged batch lie all over the dataset, so that their errors are found by the batch.


def upgrade() -> None:
    """Adds two columns and an index."""
    op.execute(COLUMNS)
    op.execute(INDEX)
