-- What the ledger knows of the slots of a machine, and what each of them should have.
--
-- `state`, `ready_at`, `idle_at` and `refused` (engines that this machine could not load lately) belong into
-- the row of the slot, and `is_news` says that the row has something else or is older than `seen_every`
-- seconds. A plan that is older than `stale` seconds says nothing. Idle children count as seen now: with a
-- statement of their own a look took a fifth longer (measured with 1,000 simulated children).

WITH refused AS (
    SELECT coalesce(array_agg(engine_key ORDER BY engine_key), '{}') AS keys FROM refusals
    WHERE pool = :pool AND supervisor = :supervisor AND retry_at > now()
), found AS (
    SELECT g.slot, g.worker_id, g.engine_key, w.state AS child_state, w.ready_at,
           extract(epoch FROM now() - w.seen_at)::float8 AS silent_seconds,
           CASE WHEN g.worker_id IS NULL THEN 'free' WHEN g.lost THEN 'lost'
                WHEN g.leaves THEN 'draining'
                WHEN w.state IN ('ready', 'draining') THEN w.state
                ELSE 'loading' END AS state,
           CASE WHEN w.state = 'ready' AND NOT EXISTS (
                    SELECT FROM batches b WHERE b.owner = w.id AND b.state = 'leased')
                THEN now() + make_interval(secs => :idle) END AS idle_at
    FROM unnest(CAST(:slots AS integer[]), CAST(:worker_ids AS text[]),
                CAST(:engine_keys AS text[]), CAST(:leaves AS boolean[]), CAST(:lost AS boolean[]))
         AS g (slot, worker_id, engine_key, leaves, lost)
    LEFT JOIN workers w ON w.id = g.worker_id
), held AS (
    -- Not the view cordoned_slots: the rows of the slots may not be written yet.
    SELECT f.slot, bool_or(c.drains) AS drains
    FROM found f JOIN cordons c
      ON (c.kind, c.name) IN (('host', :host), ('worker', :supervisor),
                              ('worker', concat_ws('/', :supervisor, f.slot)))
    GROUP BY f.slot
), beaten AS (
    -- A row that another process has locked is being beaten or ended.
    UPDATE workers SET seen_at = now(), ended_at = NULL, error = NULL,
           state = CASE WHEN slot IN (SELECT slot FROM held) THEN 'draining' ELSE 'ready' END
    WHERE id IN (SELECT id FROM workers WHERE id = ANY (CAST(:idle_ids AS text[]))
                 FOR NO KEY UPDATE SKIP LOCKED)
), waiting AS (
    SELECT loaded.engine_key
    FROM (SELECT DISTINCT engine_key FROM found WHERE child_state <> 'loading') AS loaded
    -- LATERAL with LIMIT keeps to the index; the job as in a claim.
    CROSS JOIN LATERAL (
        SELECT FROM batches b
        WHERE b.queue = concat_ws('.', CAST(:pool AS text), loaded.engine_key)
          AND b.state = 'queued'
          AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
        ORDER BY b.priority DESC, b.rank, b.id LIMIT 1) AS next
)
SELECT f.slot, f.child_state, f.silent_seconds, f.state, f.ready_at, f.idle_at, r.keys AS refused,
       o.planned_key,
       f.child_state <> 'loading' AND EXISTS (
           SELECT FROM waiting w WHERE w.engine_key = f.engine_key) AS has_work,
       f.child_state = 'ready' AND f.idle_at IS NULL AND EXISTS (
           SELECT FROM workers w WHERE w.pool = :pool AND w.engine_key = f.engine_key
           AND w.engine_key NOT IN (SELECT engine_key FROM waiting) AND w.state = 'ready'
           AND (w.supervisor, w.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
           AND NOT EXISTS (SELECT FROM batches b
                           WHERE b.owner = w.id AND b.state = 'leased')) AS siblings_idle,
       (SELECT min(j.id) FROM jobs j WHERE j.pool = :pool AND j.state = 'running'
        AND j.engine_key = o.planned_key) AS job_id,
       coalesce(p.computed_at < now() - make_interval(secs => :old), true) AND EXISTS (
           SELECT FROM jobs j WHERE j.pool = :pool AND j.state = 'running') AS is_old,
       (SELECT compatible_from FROM ledger_meta) AS compatible_from,
       h.slot IS NOT NULL AS cordoned, coalesce(h.drains, false) AS drained,
       s.slot IS NULL OR s.seen_at < now() - make_interval(secs => :seen_every)
       OR (s.state, s.worker_id, s.engine_key, s.ready_at, s.refused, s.idle_at IS NULL)
          IS DISTINCT FROM
          (f.state, f.worker_id, f.engine_key, f.ready_at, r.keys, f.idle_at IS NULL) AS is_news
FROM found f CROSS JOIN refused r
LEFT JOIN slots s ON s.supervisor = :supervisor AND s.slot = f.slot
LEFT JOIN held h ON h.slot = f.slot
LEFT JOIN pool_plans p ON p.pool = :pool
LEFT JOIN LATERAL (
    SELECT engine_key AS planned_key FROM slot_plans
    WHERE supervisor = :supervisor AND slot = f.slot AND engine_key <> ALL (r.keys)
      AND p.computed_at > now() - make_interval(secs => :stale)
) AS o ON true
ORDER BY f.slot
