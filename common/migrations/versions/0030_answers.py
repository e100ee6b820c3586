"""What a model fixes for a job at its first load, and how many tokens of answers were thoughts."""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

# Jobs of before keep an empty object: their answers are not parted from thoughts. A later job has null until
# its first load. Fixing anything there raises ledger_meta.compatible_from: a child of an older release would
# part none of the job's answers.
COLUMNS = """
ALTER TABLE jobs ADD COLUMN resolved jsonb DEFAULT '{}';
ALTER TABLE jobs ALTER COLUMN resolved DROP DEFAULT;
COMMENT ON COLUMN jobs.resolved IS
    'What the first load of the job''s model fixed: how answers are parted, and their length. Null before.';
ALTER TABLE job_spending ADD COLUMN reasoning_tokens bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN job_spending.reasoning_tokens IS
    'Of the output tokens those of thoughts before the answer.';
"""

VIEW = """
CREATE OR REPLACE VIEW job_sharing AS
SELECT j.id AS job, s.rows_run, s.rows_shared, s.prompt_tokens_spent, s.cached_tokens,
       s.output_tokens_spent, s.reasoning_tokens
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(rows_shared), 0)::bigint AS rows_shared,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens_spent,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens_spent,
           coalesce(sum(reasoning_tokens), 0)::bigint AS reasoning_tokens
    FROM job_spending WHERE job_id = j.id
) AS s;
COMMENT ON VIEW job_sharing IS
    'One row a job: rows with the answer of another, prompt tokens that a cache had, tokens of thoughts.';
"""


def upgrade() -> None:
    """Adds two columns, and two to a view."""
    op.execute(COLUMNS)
    op.execute(VIEW)
