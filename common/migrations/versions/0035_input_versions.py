"""Up to which version of its table a job has taken what versions have added."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

# Older releases know no jobs that read a table: compatible_from stays as it is.
TABLE = """
CREATE TABLE input_versions (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    version bigint NOT NULL,
    table_id text NOT NULL
);
COMMENT ON TABLE input_versions IS
    'Which table a job reads, by the id that the table says, and up to which version the job has all rows that versions have added.';
"""


def upgrade() -> None:
    """Makes the table."""
    op.execute(TABLE)
