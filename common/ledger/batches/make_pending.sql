-- Makes batches that are over pending again, for their chosen failed rows.

WITH piece AS MATERIALIZED (
    SELECT id, state, rows, redo, coalesce(last_error, 'the batch is dead') AS message,
           state = 'dead' AND (part_name IS NULL OR redo IS NOT NULL) AS unanswered
    FROM batches
    WHERE job_id = :id AND seq > :after AND seq <= coalesce(CAST(:last AS integer), seq)
      AND (state = 'dead' OR state = 'done' AND rows_failed > 0)
), failing AS (
    -- The same rows as in the view failed_rows, batch by batch by an index of row_errors.
    SELECT p.id, int8range(e.row_index, e.row_index + 1) AS rows
    FROM piece p CROSS JOIN LATERAL (
        SELECT row_index, kind FROM row_errors
        WHERE batch_id = p.id -- with job_id, too, old statistics may choose a worse index
          AND (CAST(:group AS text) IS NULL OR <group_of_message> = :group)
    ) AS e
    WHERE (p.redo IS NULL OR NOT p.redo @> e.row_index)
      AND (:dead AND p.state = 'dead'
           OR :failed AND e.kind = coalesce(CAST(:kind AS text), e.kind)
              AND (p.state = 'done' OR e.kind = 'batch_dead'
                   OR coalesce(CAST(:kind AS text), CAST(:group AS text)) IS NULL))
    UNION ALL
    SELECT id, unnest(coalesce(redo, rows)) FROM piece
    WHERE unanswered AND (CAST(:group AS text) IS NULL OR <group_of_message> = :group)
      AND (:dead OR :failed AND coalesce(CAST(:kind AS text), 'batch_dead') = 'batch_dead')
), chosen AS MATERIALIZED (
    SELECT id, range_agg(rows) AS rows, sum(upper(rows) - lower(rows))::integer AS row_count
    FROM failing GROUP BY id
), locked AS (
    SELECT c.* FROM chosen c JOIN batches b USING (id) ORDER BY id FOR UPDATE OF b
), moved AS (
    -- A batch without a part has no answers to keep and runs as if it were new.
    UPDATE batches b
    SET state = 'pending', failures = 0, losses = 0, not_before = NULL, owner = NULL,
        last_error = NULL, redo = CASE WHEN part_name IS NOT NULL THEN locked.rows END,
        redo_count = CASE WHEN part_name IS NULL THEN 0 ELSE locked.row_count END,
        rows_failed = CASE WHEN part_name IS NULL THEN 0
                           ELSE rows_failed + redo_count - locked.row_count END
    -- coalesce: old statistics that know of no batch in these states join every pair of rows.
    FROM locked WHERE b.id = locked.id AND coalesce(b.state, '') IN ('done', 'dead')
    RETURNING locked.row_count
)
SELECT coalesce(sum(row_count), 0)::bigint AS rows, count(*) AS batches FROM moved
