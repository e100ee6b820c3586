"""Where each open job stands, as reapers tell it, and which jobs need a person."""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

# Reapers of an older release tell nothing, and nobody misses it: who looks finds out by itself. So
# compatible_from stays as it is.
#
# No foreign key: its check would take the row of the job, which work in progress never takes. A reaper deletes
# rows of jobs that are gone.
TABLE = """
CREATE TABLE job_standings (
    job_id bigint PRIMARY KEY,
    state text NOT NULL,
    word text NOT NULL CHECK (word IN ('at work', 'waits', 'done', 'failed', 'paused', 'cancelled')),
    kind text NOT NULL,
    sentence text NOT NULL,
    guest_sentence text NOT NULL,
    needs_person boolean NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    told_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor=50);
COMMENT ON TABLE job_standings IS
    'One row a job that is open, or failed within a week: whether it is at work or waits, why, and whether it needs a person.';
COMMENT ON COLUMN job_standings.state IS
    'The state that the job had then: with another one now, the row is out of date.';
COMMENT ON COLUMN job_standings.guest_sentence IS
    'The sentence without names of machines, of jobs of other tenants and of their people.';
COMMENT ON COLUMN job_standings.since IS 'When the kind began.';
COMMENT ON COLUMN job_standings.told_at IS 'When the row was written.';
CREATE INDEX job_standings_for_persons ON job_standings (job_id) WHERE needs_person;
CREATE INDEX jobs_failed ON jobs (finished_at) WHERE state = 'failed';

ALTER TABLE holds DROP CONSTRAINT holds_kind_check;
ALTER TABLE holds ADD CONSTRAINT holds_kind_check
    CHECK (kind IN ('finish', 'archive', 'look', 'api_batch', 'standings'));
COMMENT ON TABLE holds IS
    'What one process has to itself for a while: a finish, an archive, a look, an API batch, the standings of jobs.';
"""

VIEW = """
CREATE OR REPLACE VIEW job_progress AS
SELECT p.*, (
    SELECT s.sentence FROM job_standings s
    WHERE s.job_id = p.job AND s.state = p.status AND s.word = 'waits'
      AND EXISTS (SELECT FROM holds WHERE kind = 'standings' AND until > now())
) AS waiting
FROM (
    SELECT p.*, k.archived_at
    FROM (
        SELECT p_1.*, k.engine_seconds, k.cost
        FROM (
            SELECT j.id AS job, j.name, j.pool, j.priority, j.state AS status, j.reason,
                   c.rows_total, c.rows_done, c.rows_failed,
                   c.batches_pending + c.batches_queued + c.batches_leased + c.batches_done
                       + c.batches_dead AS batches_total,
                   c.batches_pending, c.batches_queued, c.batches_leased, c.batches_done, c.batches_dead,
                   c.prompt_tokens, c.output_tokens,
                   CASE WHEN j.state = 'running' THEN round(r.rows_per_second::numeric, 3) END
                       AS rows_per_second,
                   CASE WHEN j.state = 'running' THEN round(r.tokens_per_second::numeric, 3) END
                       AS output_tokens_per_second,
                   CASE WHEN j.state = 'running' AND r.rows_per_second > 0
                        THEN round(((c.rows_total - c.rows_done - c.rows_failed)
                                    / r.rows_per_second)::numeric, 1) END AS eta_seconds,
                   j.output_uri, j.created_at, j.started_at, j.finished_at
            FROM jobs j
            CROSS JOIN LATERAL (
                SELECT coalesce(sum(rows_total), 0)::bigint AS rows_total,
                       coalesce(sum(rows_done), 0)::bigint AS rows_done,
                       coalesce(sum(rows_failed), 0)::bigint AS rows_failed,
                       coalesce(sum(batches_pending), 0)::bigint AS batches_pending,
                       coalesce(sum(batches_queued), 0)::bigint AS batches_queued,
                       coalesce(sum(batches_leased), 0)::bigint AS batches_leased,
                       coalesce(sum(batches_done), 0)::bigint AS batches_done,
                       coalesce(sum(batches_dead), 0)::bigint AS batches_dead,
                       coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
                       coalesce(sum(output_tokens), 0)::bigint AS output_tokens
                FROM job_counters WHERE job_id = j.id
            ) AS c
            LEFT JOIN LATERAL (
                WITH recent AS (
                    SELECT ended_at, claimed_at, row_count, output_tokens FROM attempts
                    WHERE job_id = j.id AND outcome IN ('done', 'split')
                      AND ended_at > now() - interval '30 minutes' AND ended_at >= j.started_at
                    ORDER BY ended_at DESC LIMIT 1000
                ), span AS (
                    SELECT min(ended_at) AS first, max(ended_at) AS last, min(claimed_at) AS claimed,
                           count(DISTINCT ended_at) AS commits
                    FROM recent
                ), anchored AS MATERIALIZED (
                    -- Computed once: as a plain CTE it is copied into the join below and run for each commit.
                    SELECT s.*, CASE WHEN s.commits >= 4 AND s.last - s.first > (s.first - s.claimed) / 2
                                THEN (SELECT max(ended_at) FROM recent
                                      WHERE ended_at <= s.first + (s.last - s.first) / 5) END AS anchor
                    FROM span s
                ), clocked AS (
                    SELECT a.*, coalesce(a.anchor, a.claimed) AS since,
                           CASE WHEN now() - a.last > 3 * (a.last - a.claimed) / a.commits
                                THEN now() ELSE a.last END AS until
                    FROM anchored a
                )
                SELECT sum(recent.row_count) / nullif(extract(epoch FROM k_1.until - k_1.since), 0)
                           AS rows_per_second,
                       sum(recent.output_tokens) / nullif(extract(epoch FROM k_1.until - k_1.since), 0)
                           AS tokens_per_second
                FROM clocked k_1 JOIN recent ON k_1.anchor IS NULL OR recent.ended_at > k_1.anchor
                GROUP BY k_1.until, k_1.since
            ) AS r ON j.state = 'running'
        ) AS p_1 JOIN job_costs k ON k.job = p_1.job
    ) AS p LEFT JOIN job_archives k ON k.job_id = p.job
) AS p;
"""


def upgrade() -> None:
    """Adds the table, and takes `waiting` of job_progress from it."""
    op.execute(TABLE)
    op.execute(VIEW)
