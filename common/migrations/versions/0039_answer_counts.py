"""How long the answers of a job are, and which labels of a choice they name."""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

# Children of older releases count nothing here, so compatible_from stays as it is.
COLUMNS = """
ALTER TABLE job_spending ADD COLUMN answer_lengths bigint[] NOT NULL DEFAULT '{}',
                         ADD COLUMN label_counts bigint[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN job_spending.answer_lengths IS
    'Committed answers by output tokens: without one, then 1, 2 to 3, 4 to 7 and so on.';
COMMENT ON COLUMN job_spending.label_counts IS
    'Committed answers by the labels of the spec''s task.output.choice, in its order.';
"""

VIEW = """
CREATE VIEW job_answers AS
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
    JOIN jsonb_array_elements_text(j.spec #> '{task,output,choice}')
         WITH ORDINALITY AS named (label, place) USING (place)
) AS c;
COMMENT ON VIEW job_answers IS
    'One row a job: committed answers by the length that they have, and by the label that they name.';
"""


def upgrade() -> None:
    """Adds two columns and a view."""
    op.execute(COLUMNS)
    op.execute(VIEW)
