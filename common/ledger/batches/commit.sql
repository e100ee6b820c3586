-- One group of finished batches: states, parts, old row errors and attempts at once.

WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:id AS bigint[]), CAST(:attempt AS integer[]), CAST(:owner AS text[]),
        CAST(:job_id AS bigint[]), CAST(:name AS text[]), CAST(:bytes AS bigint[]),
        CAST(:checksum AS text[]), CAST(:rows_failed AS integer[]),
        CAST(:prompt_tokens AS bigint[]), CAST(:output_tokens AS bigint[]),
        CAST(:redo AS int8multirange[]), CAST(:redo_count AS integer[]),
        CAST(:most_losses AS integer[]), CAST(:rows_run AS integer[]),
        CAST(:rows_wrong AS integer[]), CAST(:prompt_spent AS bigint[]),
        CAST(:output_spent AS bigint[]), CAST(:rows AS int8multirange[]), CAST(:low AS bigint[]),
        CAST(:high AS bigint[]), CAST(:engine_microseconds AS bigint[]),
        CAST(:ran AS int8multirange[]))
        AS m (id, attempt, owner, job_id, name, bytes, checksum, rows_failed, prompt_tokens,
              output_tokens, redo, redo_count, most_losses, rows_run, rows_wrong, prompt_spent,
              output_spent, rows, low, high, engine_microseconds, ran)
), open_jobs AS MATERIALIZED (
    -- Unlocked: before a job that is over is swept, its waiting batches lose their owners.
    SELECT j.id, j.state IN ('running', 'paused') AS is_open FROM jobs j
    WHERE j.id = ANY (CAST(:job_id AS bigint[])) AND <takes_commits>
), held AS MATERIALIZED (
    SELECT b.id, b.attempt
    FROM given m JOIN batches b ON b.id = m.id JOIN open_jobs j ON j.id = m.job_id
    WHERE b.attempt = m.attempt AND b.owner = m.owner
      -- In a job that is over a late commit of a lease that was lost is refused.
      AND (b.state = 'leased' OR j.is_open AND b.state IN ('pending', 'queued'))
      AND j.id = b.job_id
    ORDER BY b.id FOR UPDATE OF b
), committed AS (
    UPDATE batches b
    SET state = CASE WHEN m.redo_count = 0 THEN 'done' ELSE 'pending' END,
        lease_expires_at = NULL, rank = NULL, not_before = NULL, part_name = m.name,
        part_bytes = m.bytes, part_checksum = m.checksum, rows_failed = m.rows_failed,
        prompt_tokens = m.prompt_tokens, output_tokens = m.output_tokens,
        redo = m.redo, redo_count = m.redo_count, last_error = NULL,
        -- The rest of a retry needs a new claim: this attempt must not commit twice.
        owner = CASE WHEN m.redo_count = 0 THEN b.owner END,
        losses = CASE WHEN m.redo_count = 0 THEN b.losses
                      ELSE least(b.losses, m.most_losses) END,
        version_id = w.version_id,
        -- Lines that did not run again stay those of the version that made them.
        kept_versions = CASE WHEN m.ran IS NOT NULL THEN kept_versions(b, m.ran, w.version_id) END
    FROM held JOIN given m ON m.id = held.id AND m.attempt = held.attempt
    LEFT JOIN workers w ON w.id = m.owner
    WHERE b.id = held.id
), cleared AS (
    -- The errors of the new part replace those that the rows had.
    DELETE FROM row_errors e
    USING held JOIN given m ON m.id = held.id AND m.attempt = held.attempt
    WHERE e.job_id = m.job_id AND e.row_index BETWEEN m.low AND m.high
      AND m.rows @> e.row_index
), ended AS (
    UPDATE attempts a
    SET ended_at = now(), outcome = 'done', error = NULL, row_count = m.rows_run,
        rows_failed = m.rows_wrong, prompt_tokens = m.prompt_spent,
        output_tokens = m.output_spent, engine_microseconds = m.engine_microseconds
    FROM held JOIN given m ON m.id = held.id AND m.attempt = held.attempt
    WHERE a.batch_id = held.id AND a.attempt = held.attempt
)
SELECT id, attempt FROM held
