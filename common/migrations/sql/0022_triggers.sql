CREATE FUNCTION count_inserted_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counters
    SELECT * FROM (
    SELECT job_id,
           sum(sign * row_count) AS total,
           sum(sign * CASE WHEN part_name IS NULL THEN 0
                           ELSE row_count - redo_count - rows_failed END) AS done,
           sum(sign * CASE WHEN part_name IS NOT NULL
                           THEN rows_failed + (state = 'dead')::int * redo_count
                           WHEN state = 'dead' THEN row_count ELSE 0 END) AS failed,
           sum(sign * (state = 'pending')::int) AS p, sum(sign * (state = 'queued')::int) AS q,
           sum(sign * (state = 'leased')::int) AS l, sum(sign * (state = 'done')::int) AS d,
           sum(sign * (state = 'dead')::int) AS x,
           sum(sign * prompt_tokens) AS prompt, sum(sign * output_tokens) AS output,
           sum(sign * (state = 'queued')::int * row_count) AS rows_queued,
           sum(sign * (state = 'leased')::int * row_count) AS rows_leased
    FROM (SELECT 1 AS sign, new_rows.* FROM new_rows) AS changed
    WHERE state <> 'split'
    GROUP BY job_id) AS delta
    WHERE (total, done, failed, p, q, l, d, x, prompt, output, rows_queued, rows_leased)
          IS DISTINCT FROM (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
 RETURN NULL; END $$;
CREATE FUNCTION count_updated_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_counters
    SELECT * FROM (
    SELECT job_id,
           sum(sign * row_count) AS total,
           sum(sign * CASE WHEN part_name IS NULL THEN 0
                           ELSE row_count - redo_count - rows_failed END) AS done,
           sum(sign * CASE WHEN part_name IS NOT NULL
                           THEN rows_failed + (state = 'dead')::int * redo_count
                           WHEN state = 'dead' THEN row_count ELSE 0 END) AS failed,
           sum(sign * (state = 'pending')::int) AS p, sum(sign * (state = 'queued')::int) AS q,
           sum(sign * (state = 'leased')::int) AS l, sum(sign * (state = 'done')::int) AS d,
           sum(sign * (state = 'dead')::int) AS x,
           sum(sign * prompt_tokens) AS prompt, sum(sign * output_tokens) AS output,
           sum(sign * (state = 'queued')::int * row_count) AS rows_queued,
           sum(sign * (state = 'leased')::int * row_count) AS rows_leased
    FROM (SELECT 1 AS sign, new_rows.* FROM new_rows UNION ALL SELECT -1 AS sign, old_rows.* FROM old_rows) AS changed
    WHERE state <> 'split'
    GROUP BY job_id) AS delta
    WHERE (total, done, failed, p, q, l, d, x, prompt, output, rows_queued, rows_leased)
          IS DISTINCT FROM (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
 RETURN NULL; END $$;
-- Rows that come back from an archive were never taken from the counters.
CREATE TRIGGER batches_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (current_setting('nightshift.bringing_back', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION count_inserted_batches();
CREATE TRIGGER batches_updated AFTER UPDATE ON batches
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_batches();
