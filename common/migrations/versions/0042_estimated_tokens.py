"""How many of a job's tokens are estimates, because a remote server did not count them."""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

# Children of older releases estimate nothing, so compatible_from stays as it is.
COLUMN = """
ALTER TABLE job_spending ADD COLUMN estimated_tokens bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN job_spending.estimated_tokens IS
    'Prompt and output tokens that were estimated, since the server did not count them.';
"""

VIEW = """
CREATE OR REPLACE VIEW job_costs AS
SELECT j.id AS job, j.name, round(s.microseconds / 1000000, 3) AS engine_seconds, s.rows_run,
       t.prompt_tokens AS prompt_tokens_spent, t.output_tokens AS output_tokens_spent,
       CASE WHEN coalesce(p.hour, p.prompt, p.output) IS NOT NULL
            THEN round(coalesce(p.hour, 0) * s.microseconds / 3600000000
                       + coalesce(p.prompt, 0) * t.prompt_tokens / 1000000
                       + coalesce(p.output, 0) * t.output_tokens / 1000000, 6) END AS cost,
       (j.spec #>> '{limits,budget}')::numeric AS budget,
       s.estimated_tokens,
       s.estimated_tokens > 0 AND greatest(p.prompt, p.output, 0) > 0 AS cost_is_estimate
FROM jobs j
CROSS JOIN LATERAL (
    SELECT coalesce(sum(engine_microseconds), 0) AS microseconds,
           coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(estimated_tokens), 0)::bigint AS estimated_tokens
    FROM job_spending WHERE job_id = j.id
) AS s
CROSS JOIN LATERAL (
    SELECT greatest(s.prompt_tokens, coalesce(sum(prompt_tokens), 0)::bigint) AS prompt_tokens,
           greatest(s.output_tokens, coalesce(sum(output_tokens), 0)::bigint) AS output_tokens
    FROM job_counters WHERE job_id = j.id
) AS t
CROSS JOIN LATERAL (
    SELECT (j.spec #>> '{engine,price_per_hour}')::numeric AS hour,
           (j.spec #>> '{engine,price_per_million_prompt_tokens}')::numeric AS prompt,
           (j.spec #>> '{engine,price_per_million_output_tokens}')::numeric AS output
) AS p;
COMMENT ON COLUMN job_costs.estimated_tokens IS
    'Those of the tokens that were estimated, since the server did not count them.';
COMMENT ON COLUMN job_costs.cost_is_estimate IS 'Whether the cost is of estimated tokens, too.';
"""


def upgrade() -> None:
    """Adds a column, and what follows from it to the view of costs."""
    op.execute(COLUMN)
    op.execute(VIEW)
