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
COMMENT ON VIEW job_costs IS
    'One row a job: engine time, rows and tokens used, money spent.';

CREATE VIEW job_progress AS
SELECT p.*, CASE
    WHEN p.status = 'running' AND p.batches_pending + p.batches_queued > 0 AND NOT EXISTS (
        SELECT FROM jobs j JOIN workers w USING (pool, engine_key)
        WHERE j.id = p.job AND w.seen_at > now() - interval '1 minute'
          AND (w.state IN ('ready', 'draining') OR w.state = 'loading' AND NOT EXISTS (
              SELECT FROM refusals r WHERE r.pool = w.pool AND r.engine_key = w.engine_key
              AND r.supervisor = w.supervisor)))
    THEN (
        SELECT CASE
            WHEN count(s.supervisor) = 0 THEN format('no worker of the pool %s is alive', j.pool)
            WHEN count(s.supervisor) = count(r.supervisor) + count(*) FILTER (WHERE s.other)
            THEN 'no worker of the pool ' || j.pool || ' can load its engine'
                 || coalesce('; last, on ' || (array_agg(r.host ORDER BY r.failed_at DESC)
                                 FILTER (WHERE r.host IS NOT NULL))[1]
                    || ': ' || (array_agg(r.error ORDER BY r.failed_at DESC)
                                FILTER (WHERE r.host IS NOT NULL))[1], '')
        END
        FROM jobs j
        LEFT JOIN LATERAL (
            SELECT supervisor, bool_and(serves <> j.engine_key) IS TRUE AS other FROM slots
            WHERE pool = j.pool AND seen_at > now() - interval '1 minute' GROUP BY supervisor
        ) AS s ON true
        LEFT JOIN refusals r ON r.pool = j.pool AND r.engine_key = j.engine_key
                            AND r.supervisor = s.supervisor AND NOT s.other
        WHERE j.id = p.job GROUP BY j.pool
    ) END AS waiting
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
COMMENT ON VIEW job_progress IS
    'One row a job: what is done, how fast, when it ends. Rows failed are not among rows done.';

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
COMMENT ON VIEW failed_rows IS
    'One row for each input row that has an error in place of an answer.';

CREATE VIEW machines_set_aside AS
SELECT pool, engine_key, host, supervisor, concern, failures, failed_since,
       round(extract(epoch FROM retry_at - now())::numeric, 1) AS seconds_left, error
FROM refusals WHERE retry_at > now();
COMMENT ON VIEW machines_set_aside IS
    'One row for each machine and engine that it could not load and does not try again yet.';

CREATE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid,
       CASE WHEN s.worker_id IS NULL THEN w.state ELSE 'lost' END AS state,
       w.engine, w.engine_version, w.engine_key, w.window_rows,
       coalesce(l.batches, 0) AS batches_leased, coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error,
       (SELECT count(*) FROM machines_set_aside m
        WHERE m.pool = w.pool AND m.supervisor = w.supervisor) AS engines_set_aside
FROM workers w
LEFT JOIN slots s ON s.worker_id = w.id AND s.state = 'lost'
                 AND s.seen_at > now() - interval '1 minute'
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended' OR s.worker_id IS NOT NULL;
COMMENT ON VIEW worker_status IS
    'One row a living worker child: its engine and what it holds; lost: a killed child that the '
    'kernel does not let go, and whose slot nobody can use.';

CREATE VIEW job_demand AS
SELECT j.id AS job, j.pool, j.engine_key, j.priority, c.waiting AS batches_waiting,
       c.leased AS batches_leased, c.rows_open,
       greatest(coalesce(h.slots, 0), CASE WHEN a.claimable > 0 THEN least(
           a.allowed,
           greatest(c.rows_open, a.allowed) / w.window_rows,
           coalesce(h.slots, 0) + greatest(c.rows_open - c.rows_leased, a.claimable) / w.window_rows
       ) ELSE 0 END) AS slots,
       (ceil(coalesce(h.slots, 0) - 0.000001) + a.claimable)::bigint AS most_slots
FROM jobs j
LEFT JOIN engines e ON e.pool = j.pool AND e.engine_key = j.engine_key
CROSS JOIN LATERAL (SELECT coalesce(e.window_rows, 256)::float8 AS window_rows) AS w
-- A child that holds batches of several jobs is a part of a slot for each.
LEFT JOIN (
    SELECT pool, job_id, sum(part)::float8 AS slots
    FROM (SELECT w.pool, b.job_id, 1.0 / count(*) OVER (PARTITION BY w.pool, b.owner) AS part
          FROM workers w JOIN batches b ON b.owner = w.id AND b.state = 'leased'
          WHERE w.state <> 'ended' AND w.seen_at > now() - interval '1 minute'
          GROUP BY w.pool, b.owner, b.job_id) AS held
    GROUP BY pool, job_id
) AS h ON h.pool = j.pool AND h.job_id = j.id
CROSS JOIN LATERAL (
    SELECT CASE WHEN j.state = 'running'
                THEN coalesce(sum(batches_pending + batches_queued), 0) ELSE 0 END::bigint
                AS waiting,
           coalesce(sum(batches_leased), 0)::bigint AS leased,
           CASE WHEN j.state = 'running'
                THEN coalesce(sum(rows_total - rows_done - rows_failed), 0) ELSE 0 END::bigint
                AS rows_open,
           coalesce(sum(rows_leased), 0)::bigint AS rows_leased
    FROM job_counters WHERE job_id = j.id
) AS c
CROSS JOIN LATERAL (
    -- Batches that back off for longer than a load takes are no work yet.
    SELECT least(j.max_parallel, c.waiting + c.leased - count(*)) AS allowed,
           greatest(0, least(j.max_parallel - c.leased, c.waiting - count(*))) AS claimable
    FROM batches b
    WHERE b.job_id = j.id AND b.state = 'pending'
      AND b.not_before > now() + make_interval(secs => coalesce(e.load_seconds, 0))
) AS a
WHERE j.state = 'running' OR j.state = 'paused' AND c.leased > 0;
COMMENT ON VIEW job_demand IS
    'One row for each job with open work: how many slots it would fill with windows of rows (slots, '
    'in parts of a slot) and how many it could use at most (most_slots, a batch each); of a paused '
    'job what is under way.';

CREATE VIEW pool_demand AS
WITH open_work AS (
    SELECT pool, engine_key, max(priority) AS priority, count(*) AS jobs,
           sum(batches_waiting)::bigint AS batches_waiting,
           sum(batches_leased)::bigint AS batches_leased, sum(rows_open)::bigint AS rows_open,
           ceil(sum(slots) - 0.000001)::bigint AS slots
    FROM job_demand GROUP BY pool, engine_key
)
SELECT o.pool, o.engine_key, o.priority, o.jobs, o.batches_waiting, o.batches_leased, o.rows_open,
       w.workers, coalesce((p.desired_slots ->> o.engine_key)::bigint, o.slots) AS desired_workers
FROM open_work o
LEFT JOIN pool_plans p ON p.pool = o.pool AND p.computed_at > now() - interval '2 seconds'
CROSS JOIN LATERAL (
    SELECT count(*) AS workers FROM workers
    WHERE workers.pool = o.pool AND workers.engine_key = o.engine_key
      AND state <> 'ended' AND seen_at > now() - interval '1 minute'
) AS w;
COMMENT ON VIEW pool_demand IS
    'One row for each engine with open work: how much waits, how many workers would have something '
    'to do (desired_workers, from the plan of the pool, or from job_demand where no plan is younger '
    'than 2 s: never fewer than hold leases; of a paused job what is under way).';

CREATE VIEW cordoned_slots AS
SELECT s.supervisor, s.slot, bool_or(c.drains) AS drains, min(c.since) AS since
FROM slots s JOIN cordons c
  ON (c.kind, c.name) IN (('host', s.host), ('worker', s.supervisor),
                          ('worker', concat_ws('/', s.supervisor, s.slot)))
GROUP BY s.supervisor, s.slot;
COMMENT ON VIEW cordoned_slots IS
    'One row for each known slot that takes no new work.';

CREATE VIEW job_generations AS
SELECT g.job_id AS job, g.number, g.source, g.first_file, g.stop_file, g.first_row, g.stop_row,
       g.first_seq, g.stop_seq, g.planned_at, g.finished_at,
       -- Each by the index of its state: one scan for all would read every batch that is done.
       EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'pending'
               AND b.seq >= g.first_seq AND b.seq < g.stop_seq)
       OR EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'queued'
                  AND b.seq >= g.first_seq AND b.seq < g.stop_seq)
       OR EXISTS (SELECT FROM batches b WHERE b.job_id = g.job_id AND b.state = 'leased'
                  AND b.seq >= g.first_seq AND b.seq < g.stop_seq) AS is_open
FROM generations g;
COMMENT ON VIEW job_generations IS
    'One row for each submit and append of a job that grew or is watched: its files, rows and batches '
    '(from the first to before the stop), and whether a batch of it is open.';

CREATE VIEW watch_status AS
SELECT w.job_id AS job, j.name, w.every_seconds, w.looked_at, w.next_look_at, w.files_listed, w.error,
       count(u.uri) FILTER (WHERE u.state = 'waiting') AS files_waiting,
       count(u.uri) FILTER (WHERE u.state = 'refused') AS files_refused,
       count(u.uri) FILTER (WHERE u.state = 'changed') AS files_changed,
       count(u.uri) FILTER (WHERE u.state = 'gone') AS files_gone,
       j.state = 'running' AND c.open = 0 AS waiting_for_files
FROM job_watches w
JOIN jobs j ON j.id = w.job_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(batches_pending + batches_queued + batches_leased), 0)::bigint AS open
    FROM job_counters WHERE job_id = w.job_id
) AS c
LEFT JOIN unplanned_files u ON u.job_id = w.job_id
GROUP BY w.job_id, j.id, c.open;
COMMENT ON VIEW watch_status IS
    'One row a watched job: when its input was looked at, what was found, and whether the job waits '
    'for files because all of its rows are done.';

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

CREATE VIEW job_sharing AS
SELECT j.id AS job, s.rows_run, s.rows_shared, s.prompt_tokens_spent, s.cached_tokens
FROM jobs j CROSS JOIN LATERAL (
    SELECT coalesce(sum(rows_run), 0)::bigint AS rows_run,
           coalesce(sum(rows_shared), 0)::bigint AS rows_shared,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens_spent,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens
    FROM job_spending WHERE job_id = j.id
) AS s;
COMMENT ON VIEW job_sharing IS
    'One row a job: rows that have the answer of another, prompt tokens that an engine''s cache had.';
