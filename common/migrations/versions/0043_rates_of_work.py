"""Rates count the time in which somebody works on a job, also before the first commit after a pause."""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

# One column more at the end of a view: code of an older release reads the views as before, and compatible_from stays as
# it is. The time between the last commit and now counts only while a lease is open. It counted whenever a worker was
# alive, so that the first rate after a pause of an hour was one over this hour. job_progress has the rates of job_pace:
# its own were over the time of the clock, pauses included.
PACE = """
CREATE OR REPLACE VIEW job_pace AS
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
    ), silent AS MATERIALIZED (
        -- Long after the last commit the time of the leases that are open counts, too: the oldest of each child.
        SELECT a.*, 3 * (a.last - a.claimed) / a.commits AS patience,
               CASE WHEN w.workers > 0 AND now() - a.last > 3 * (a.last - a.claimed) / a.commits THEN (
                   SELECT min(o.claimed_at)
                   FROM workers c CROSS JOIN LATERAL (
                       SELECT t.claimed_at
                       FROM batches b JOIN attempts t ON t.batch_id = b.id AND t.attempt = b.attempt
                       WHERE b.owner = c.id AND b.state = 'leased' AND b.job_id = j.id
                       ORDER BY b.id LIMIT 1
                   ) AS o
                   WHERE c.pool = j.pool AND c.engine_key = j.engine_key AND c.state <> 'ended'
               ) END AS leased_since
        FROM anchored a
    ), clocked AS MATERIALIZED (
        SELECT coalesce(s.anchor, s.claimed) AS since, s.anchor, s.leased_since,
               CASE WHEN now() - greatest(s.last, s.leased_since) > s.patience
                         AND s.leased_since IS NOT NULL
                    THEN now() ELSE s.last END AS until
        FROM silent s
    ), leases AS (
        SELECT k.since, greatest(e.claimed_at, k.since) AS begun, e.ended_at AS ended
        FROM clocked k JOIN recent e ON e.ended_at > k.since
        UNION ALL
        SELECT k.since, greatest(k.leased_since, k.since), now() FROM clocked k WHERE k.until = now()
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
"""

PROGRESS = """
CREATE OR REPLACE VIEW job_progress AS
SELECT j.id AS job, j.name, j.pool, j.priority, j.state AS status, j.reason,
       c.rows_total, c.rows_done, c.rows_failed,
       c.batches_pending + c.batches_queued + c.batches_leased + c.batches_done + c.batches_dead
           AS batches_total,
       c.batches_pending, c.batches_queued, c.batches_leased, c.batches_done, c.batches_dead,
       c.prompt_tokens, c.output_tokens, r.rows_per_second, r.output_tokens_per_second,
       CASE WHEN r.rows_per_second > 0
            THEN round((c.rows_total - c.rows_done - c.rows_failed) / r.rows_per_second, 1) END
           AS eta_seconds,
       j.output_uri, j.created_at, j.started_at, j.finished_at, k.engine_seconds, k.cost, a.archived_at,
       (SELECT s.sentence FROM job_standings s
        WHERE s.job_id = j.id AND s.state = j.state AND s.word = 'waits'
          AND EXISTS (SELECT FROM holds WHERE kind = 'standings' AND until > now())) AS waiting,
       k.cost_is_estimate
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
JOIN job_pace r ON r.job = j.id
JOIN job_costs k ON k.job = j.id
LEFT JOIN job_archives a ON a.job_id = j.id;
COMMENT ON COLUMN job_progress.cost_is_estimate IS
    'Whether the cost is of tokens, too, that were estimated, since the server did not count them.';
"""


def upgrade() -> None:
    """Replaces two views."""
    op.execute(PACE)
    op.execute(PROGRESS)
