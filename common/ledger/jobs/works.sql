-- What `Work` has of each running job with a deadline, of one pool or of some jobs.

WITH due AS MATERIALIZED (
    SELECT j.id, j.pool, j.engine_key, j.max_parallel,
           extract(epoch FROM j.finish_by - now())::float8 AS seconds_left,
           coalesce(e.load_seconds, 0) AS load_seconds,
           coalesce(e.window_rows, 256) AS window_rows
    FROM jobs j LEFT JOIN engines e ON e.pool = j.pool AND e.engine_key = j.engine_key
    WHERE j.finish_by IS NOT NULL AND j.state = 'running'
      AND (CAST(:pool AS text) IS NULL OR j.pool = :pool)
      AND (CAST(:jobs AS bigint[]) IS NULL OR j.id = ANY (:jobs))
), held AS (
    -- A child that holds rows of several jobs is a part of a slot for each.
    SELECT job_id, sum(part) AS slots
    FROM (SELECT b.job_id,
                 sum(b.row_count)::float8 / sum(sum(b.row_count)) OVER (PARTITION BY b.owner)
                 AS part
          FROM workers w JOIN batches b ON b.owner = w.id AND b.state = 'leased'
          WHERE (w.pool, w.engine_key) IN (SELECT pool, engine_key FROM due)
            AND w.state <> 'ended' AND w.seen_at > now() - interval '1 minute'
          GROUP BY b.owner, b.job_id) AS children
    GROUP BY job_id
)
SELECT d.id, d.seconds_left, d.load_seconds, coalesce(h.slots, 0) AS slots, c.rows_open,
       least(d.max_parallel, c.batches_open) AS most_slots,
       CASE WHEN c.rows_over >= least(d.window_rows, :least * c.rows_total)
            THEN m.rows / nullif(m.seconds, 0) END AS rate,
       coalesce(m.seconds_ago, 0) AS measured_seconds_ago
FROM due d LEFT JOIN held h ON h.job_id = d.id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_total), 0)::float8 AS rows_total,
           coalesce(sum(rows_done + rows_failed), 0)::bigint AS rows_over,
           coalesce(sum(rows_total - rows_done - rows_failed), 0)::bigint AS rows_open,
           coalesce(sum(batches_pending + batches_queued + batches_leased), 0)::bigint
           AS batches_open
    FROM job_counters WHERE job_id = d.id
) AS c
CROSS JOIN LATERAL (
    -- Engine time is time at work: a job without a slot keeps its rate.
    SELECT sum(row_count)::float8 AS rows, sum(engine_microseconds)::float8 / 1e6 AS seconds,
           extract(epoch FROM now() - max(ended_at))::float8 AS seconds_ago
    FROM (SELECT row_count, engine_microseconds, ended_at FROM attempts
          WHERE job_id = d.id AND outcome IN ('done', 'split')
            AND engine_microseconds IS NOT NULL
          ORDER BY ended_at DESC LIMIT :most) AS latest
) AS m
