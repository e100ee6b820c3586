"""What a job has used and costs: engine time, rows run, tokens spent; and the code of a worker."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A table of its own and not columns of job_counters: a reaper of an older release folds those, and
# would leave out what it does not know.
TABLES = """
CREATE TABLE job_spending (
    job_id bigint NOT NULL,
    worker_id text NOT NULL,
    engine_microseconds bigint NOT NULL,
    rows_run bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    PRIMARY KEY (job_id, worker_id)
) WITH (fillfactor = 50);
COMMENT ON TABLE job_spending IS
    'One row a job and child: what its commits used, rows that ran again included.';
COMMENT ON COLUMN job_spending.engine_microseconds IS
    'Time in which the child held batches of the job; shared by rows between jobs held at once.';
ALTER TABLE attempts ADD COLUMN engine_microseconds bigint;
ALTER TABLE workers ADD COLUMN code_version text;
-- Older code can neither read the specs of new tasks and engines nor a JSON schema kept as text.
UPDATE ledger_meta SET compatible_from = 2;
COMMENT ON COLUMN attempts.engine_microseconds IS
    'Engine time of the job that this commit accounted for, since the one before it.';
"""

# Older children commit without spending: what stands in the parts was spent at least.
VIEWS = """
CREATE VIEW job_costs AS
SELECT j.id AS job, j.name, round(s.microseconds / 1000000, 3) AS engine_seconds, s.rows_run,
       t.prompt_tokens AS prompt_tokens_spent, t.output_tokens AS output_tokens_spent,
       CASE WHEN coalesce(p.hour, p.prompt, p.output) IS NOT NULL
            THEN round(coalesce(p.hour, 0) * s.microseconds / 3600000000
                       + coalesce(p.prompt, 0) * t.prompt_tokens / 1000000
                       + coalesce(p.output, 0) * t.output_tokens / 1000000, 6) END AS cost,
       (j.spec #>> '{limits,budget}')::numeric AS budget
FROM jobs j
CROSS JOIN LATERAL (
    SELECT coalesce(sum(engine_microseconds), 0) AS microseconds,
           coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(output_tokens), 0)::bigint AS output_tokens
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
COMMENT ON VIEW job_costs IS 'One row a job: engine time, rows and tokens used, money spent.';
"""

DEFINITION = "SELECT pg_get_viewdef('job_progress'::regclass)"


def upgrade() -> None:
    """Adds the table and the view, and two columns at the end of job_progress."""
    op.execute(TABLES)
    op.execute(VIEWS)
    progress = op.get_bind().exec_driver_sql(DEFINITION).scalar_one().strip().rstrip(";")
    op.execute(
        f"""
        CREATE OR REPLACE VIEW job_progress AS
        SELECT p.*, k.engine_seconds, k.cost
        FROM ({progress}) AS p JOIN job_costs k ON k.job = p.job
        """
    )
