"""What a lease never sent to its engine, and the rows that children have finished of batches under way."""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

# Children of an older release write neither: their leases count as if every row had been sent, and their rows are
# seen at the commit, as before. So compatible_from stays as it is.
COLUMNS = """
ALTER TABLE attempts ADD COLUMN unsent int8multirange;
COMMENT ON COLUMN attempts.unsent IS
    'Rows of the batch whose requests this attempt never sent to its engine; null if that is not known.';

ALTER TABLE job_spending
    ADD COLUMN done_uncommitted bigint NOT NULL DEFAULT 0,
    ADD COLUMN failed_uncommitted bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN job_spending.done_uncommitted IS
    'Rows with an answer in batches that the child holds and has not committed, as of its last report.';
COMMENT ON COLUMN job_spending.failed_uncommitted IS
    'The same for rows with an error.';
"""

VIEW = """
CREATE OR REPLACE VIEW job_progress AS
SELECT p.*, coalesce(u.done, 0)::bigint AS rows_done_uncommitted,
       coalesce(u.failed, 0)::bigint AS rows_failed_uncommitted
FROM ({progress}) AS p LEFT JOIN LATERAL (
    -- A report may be late: no more rows are under way than are leased.
    SELECT least(s.done, l.leased) AS done, least(s.failed, l.leased - least(s.done, l.leased)) AS failed
    FROM (
        SELECT greatest(sum(rows_leased), 0) AS leased FROM job_counters WHERE job_id = p.job
    ) AS l, (
        SELECT coalesce(sum(s.done_uncommitted), 0) AS done,
               coalesce(sum(s.failed_uncommitted), 0) AS failed
        FROM job_spending s JOIN workers w ON w.id = s.worker_id
        WHERE s.job_id = p.job AND w.state <> 'ended'
    ) AS s
) AS u ON p.batches_leased > 0
"""


def upgrade() -> None:
    """Adds the columns to the tables, and two behind those of job_progress."""
    op.execute(COLUMNS)
    found = op.get_bind().exec_driver_sql("SELECT pg_get_viewdef('job_progress'::regclass)")
    op.execute(VIEW.format(progress=str(found.scalar_one()).rstrip().rstrip(";")))
