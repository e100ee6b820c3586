CREATE VIEW job_progress AS
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
    SELECT sum(recent.row_count) / nullif(extract(epoch FROM k.until - k.since), 0)
               AS rows_per_second,
           sum(recent.output_tokens) / nullif(extract(epoch FROM k.until - k.since), 0)
               AS tokens_per_second
    FROM clocked k JOIN recent ON k.anchor IS NULL OR recent.ended_at > k.anchor
    GROUP BY k.until, k.since
) AS r ON j.state = 'running';

CREATE VIEW failed_rows AS
SELECT e.job_id AS job, j.name, e.row_index, e.row_id, e.kind, e.message, e.batch_id, e.failed_at
FROM row_errors e JOIN jobs j ON j.id = e.job_id
WHERE NOT EXISTS (SELECT FROM batches b WHERE b.id = e.batch_id AND b.redo @> e.row_index)
UNION ALL
SELECT b.job_id, j.name, r.row_index, NULL, 'batch_dead',
       coalesce(b.last_error, 'the batch is dead'), b.id, a.ended_at
FROM batches b JOIN jobs j ON j.id = b.job_id
LEFT JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
CROSS JOIN LATERAL unnest(coalesce(b.redo, b.rows)) AS piece
CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS r (row_index)
WHERE b.state = 'dead' AND (b.part_name IS NULL OR b.redo IS NOT NULL);

CREATE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid, w.state, w.engine, w.engine_version,
       w.engine_key, w.window_rows, coalesce(l.batches, 0) AS batches_leased,
       coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error
FROM workers w
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended';

CREATE VIEW pool_demand AS
WITH open_work AS (
    SELECT j.pool, j.engine_key, max(j.priority) AS priority, count(*) AS jobs,
           sum(p.batches_pending + p.batches_queued)::bigint AS batches_waiting,
           sum(p.batches_leased)::bigint AS batches_leased,
           sum(p.rows_total - p.rows_done - p.rows_failed)::bigint AS rows_open,
           sum(least(p.batches_pending + p.batches_queued + p.batches_leased,
                     coalesce(j.max_parallel, 2147483647)))::bigint AS batches_allowed
    FROM jobs j JOIN job_progress p ON p.job = j.id
    WHERE j.state = 'running'
    GROUP BY j.pool, j.engine_key
)
SELECT o.pool, o.engine_key, o.priority, o.jobs, o.batches_waiting, o.batches_leased, o.rows_open,
       w.workers,
       CASE WHEN o.batches_waiting + o.batches_leased = 0 THEN 0
            ELSE greatest(1, least(o.batches_allowed,
                 ceil(o.rows_open::numeric / greatest(w.window_rows, 1))::bigint)) END
           AS desired_workers
FROM open_work o
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, coalesce(max(window_rows), 256) AS window_rows
    FROM workers WHERE workers.pool = o.pool AND workers.engine_key = o.engine_key
      AND state <> 'ended' AND seen_at > now() - interval '1 minute'
) AS w;

COMMENT ON VIEW job_progress IS 'One row a job: what is done, how fast, when it ends. Rows failed are not among rows done.';
COMMENT ON VIEW failed_rows IS 'One row for each input row that has an error in place of an answer.';
COMMENT ON VIEW worker_status IS 'One row a living worker child: its engine and what it holds.';
COMMENT ON VIEW pool_demand IS 'One row for each engine with open work: how much waits, how many workers would have something to do (desired_workers, at least 1 while work is open).';
