"""job_answers of a job whose task.output is a schema, a regular expression or a grammar."""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

# A stored spec has every field of task.output. Without a choice the field is JSON null, which is not SQL's NULL:
# jsonb_array_elements_text raised "cannot extract elements from a scalar" for it.
VIEW = """
CREATE OR REPLACE VIEW job_answers AS
SELECT j.id AS job, l.lengths, c.labels
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(answers ORDER BY place), '{}') AS lengths
    FROM (SELECT u.place, sum(u.answers)::bigint AS answers
          FROM job_spending s
          CROSS JOIN LATERAL unnest(s.answer_lengths) WITH ORDINALITY AS u (answers, place)
          WHERE s.job_id = j.id GROUP BY u.place) AS summed
) AS l CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(named.label, summed.answers) AS labels
    FROM (SELECT u.place, sum(u.answers)::bigint AS answers
          FROM job_spending s
          CROSS JOIN LATERAL unnest(s.label_counts) WITH ORDINALITY AS u (answers, place)
          WHERE s.job_id = j.id GROUP BY u.place) AS summed
    JOIN jsonb_array_elements_text(nullif(j.spec #> '{task,output,choice}', 'null'))
         WITH ORDINALITY AS named (label, place) USING (place)
) AS c;
"""


def upgrade() -> None:
    """Replaces the view."""
    op.execute(VIEW)
