"""How fast a job is over the time in which somebody works on it, and when there was a last sign of it."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Older reapers leave the columns null, and older code does not read them: compatible_from stays.
COLUMNS = """
ALTER TABLE jobs ADD COLUMN worked_seconds double precision;
COMMENT ON COLUMN jobs.worked_seconds IS
    'Written before the job is closed: time in which at least one of its batches was leased.';
ALTER TABLE jobs ADD COLUMN remark text;
COMMENT ON COLUMN jobs.remark IS 'What a worker has to say of the job while the job runs on.';
"""

# As in job_progress, the rate begins behind the first fifth of the recent commits, where they fill the
# pipeline. Time between two leases does not count. Time behind the last commit counts where a worker has
# the engine: a job that stands still must say so.
VIEW = """
CREATE VIEW job_pace AS
SELECT j.id AS job, w.workers, w.loading_seconds,
       coalesce(j.spec #>> '{engine,model}', j.spec #>> '{engine,callable}') AS model, j.remark,
       round(extract(epoch FROM now() - greatest(w.sign_at, c.committed_at))::numeric, 1)
           AS seconds_since_sign,
       CASE WHEN j.closed_at IS NOT NULL THEN j.worked_seconds END AS worked_seconds,
       round((r.rows / r.seconds)::numeric, 3) AS rows_per_second,
       round((r.tokens / r.seconds)::numeric, 3) AS output_tokens_per_second
FROM jobs j
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state IN ('ready', 'draining')
                              AND seen_at > now() - interval '1 minute') AS workers,
           CASE WHEN bool_and(state = 'loading')
                THEN extract(epoch FROM now() - min(started_at))::float8 END AS loading_seconds,
           max(seen_at) FILTER (WHERE EXISTS (
               SELECT FROM batches b
               WHERE b.owner = workers.id AND b.state = 'leased' AND b.job_id = j.id)) AS sign_at
    FROM workers
    WHERE pool = j.pool AND engine_key = j.engine_key AND state <> 'ended'
) AS w ON j.state IN ('running', 'paused')
LEFT JOIN LATERAL (
    SELECT ended_at AS committed_at FROM attempts
    WHERE job_id = j.id AND outcome IN ('done', 'split') ORDER BY ended_at DESC LIMIT 1
) AS c ON j.state IN ('running', 'paused')
LEFT JOIN LATERAL (
    WITH recent AS MATERIALIZED (
        SELECT ended_at, claimed_at, row_count, output_tokens FROM attempts
        WHERE job_id = j.id AND outcome IN ('done', 'split')
          AND ended_at > now() - interval '30 minutes' AND ended_at >= j.started_at
        ORDER BY ended_at DESC LIMIT 1000
    ), span AS (
        SELECT min(ended_at) AS first, max(ended_at) AS last, min(claimed_at) AS claimed,
               count(DISTINCT ended_at) AS commits
        FROM recent
    ), anchored AS MATERIALIZED (
        SELECT s.*, CASE WHEN s.commits >= 4 AND s.last - s.first > (s.first - s.claimed) / 2
                    THEN (SELECT max(ended_at) FROM recent
                          WHERE ended_at <= s.first + (s.last - s.first) / 5) END AS anchor
        FROM span s
    ), clocked AS MATERIALIZED (
        SELECT coalesce(a.anchor, a.claimed) AS since, a.anchor,
               CASE WHEN w.workers > 0 AND now() - a.last > 3 * (a.last - a.claimed) / a.commits
                    THEN now() ELSE a.last END AS until
        FROM anchored a
    ), leases AS (
        SELECT k.since, greatest(e.claimed_at, k.since) AS begun, e.ended_at AS ended
        FROM clocked k JOIN recent e ON e.ended_at > k.since
    ), idle AS (
        SELECT coalesce(sum(greatest(begun - reached, interval '0')), interval '0') AS gaps
        FROM (SELECT begun, coalesce(max(ended) OVER (
                         ORDER BY begun ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), since)
                         AS reached
              FROM leases) AS ordered
    ), counted AS (
        SELECT sum(e.row_count) AS rows, sum(e.output_tokens) AS tokens
        FROM clocked k JOIN recent e ON k.anchor IS NULL OR e.ended_at > k.anchor
    )
    SELECT n.rows, n.tokens,
           nullif(extract(epoch FROM k.until - k.since - i.gaps), 0) AS seconds
    FROM clocked k, idle i, counted n
) AS r ON j.state = 'running';
COMMENT ON VIEW job_pace IS
    'One row a job: rates over the time in which somebody works on it, who works, the last sign.';
"""


def upgrade() -> None:
    """Adds the columns and the view."""
    op.execute(COLUMNS)
    op.execute(VIEW)
