"""How many rows of a job have the answer of another row, and how many prompt tokens a cache had."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# Children of an older release report without these columns, so that compatible_from stays as it is.
TABLE = """
ALTER TABLE job_spending ADD COLUMN cached_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN rows_shared bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN job_spending.cached_tokens IS
    'Of the prompt tokens those that were in an engine''s cache.';
COMMENT ON COLUMN job_spending.rows_shared IS
    'Of rows_run those that have the answer of a row with an equal request.';
"""

VIEW = """
CREATE VIEW job_sharing AS
SELECT j.id AS job, s.rows_run, s.rows_shared, s.prompt_tokens_spent, s.cached_tokens
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(rows_shared), 0)::bigint AS rows_shared,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens_spent,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens
    FROM job_spending WHERE job_id = j.id
) AS s;
COMMENT ON VIEW job_sharing IS
    'One row a job: rows that have the answer of another, prompt tokens that an engine''s cache had.';
"""


def upgrade() -> None:
    """Adds two columns and a view."""
    op.execute(TABLE)
    op.execute(VIEW)
