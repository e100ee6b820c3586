-- Leases the first batches of a queue that fit, begins their attempts, starts their jobs' clocks.
--
-- Where the first batch must run alone, one busy child is elected to take nothing else until it is
-- idle, and then takes that batch.

WITH first AS (
    SELECT b.id, b.losses FROM batches b
    WHERE b.queue = :queue AND b.state = 'queued' AND NOT :idle
      AND b.job_id <> ALL (CAST(:avoided AS bigint[]))
      AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
    ORDER BY b.priority DESC, b.rank, b.id LIMIT 1
), elected AS (
    -- The hash chooses one child for each lone batch; the other children go on with others.
    SELECT (SELECT w.id FROM workers w
            WHERE w.pool = :pool AND w.engine_key = :engine_key AND w.state = 'ready'
              AND w.seen_at > now() - make_interval(secs => :lease_seconds)
            ORDER BY md5(concat_ws(' ', w.id, first.id)) LIMIT 1) AS child
    FROM first WHERE first.losses >= :lone_losses
), candidates AS MATERIALIZED (
    SELECT b.id, b.row_count, b.redo_count, b.losses >= :lone_losses AS alone, b.rank,
           b.priority
    FROM batches b
    WHERE b.queue = :queue AND b.state = 'queued' AND (:idle OR b.losses < :lone_losses)
      AND b.job_id <> ALL (CAST(:avoided AS bigint[]))
      -- Not a join, which may read and sort the whole queue for the first few of it.
      AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
      AND NOT EXISTS (SELECT FROM elected WHERE child = :owner)
    ORDER BY b.priority DESC, b.rank, b.id
    LIMIT :max_batches
    FOR UPDATE OF b SKIP LOCKED
), ordered AS (
    SELECT id, row_number() OVER best AS place, bool_or(alone) OVER best AS lonely,
           sum(CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END) OVER best
               - CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END AS before
    FROM candidates WINDOW best AS (ORDER BY priority DESC, rank, id)
), claimed AS (
    UPDATE batches b
    SET state = 'leased', attempt = b.attempt + 1, owner = :owner, rank = NULL,
        not_before = NULL, lease_expires_at = now() + make_interval(secs => :lease_seconds)
    FROM ordered o
    WHERE b.id = o.id AND (o.place = 1 OR (o.before < :room_rows AND NOT o.lonely))
    RETURNING b.*, o.place
), noted AS (
    INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken)
    SELECT id, attempt, job_id, :owner, :engine, :engine_version, :woken FROM claimed
), started AS (
    -- SKIP LOCKED: a claim waits for nobody, and whoever holds the job row (retry, close) may
    -- be waiting for these very batches.
    UPDATE jobs SET started_at = now() WHERE id IN (
        SELECT id FROM jobs WHERE started_at IS NULL AND id IN (SELECT job_id FROM claimed)
        FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT c.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows, f.first_row,
       f.arranged
FROM claimed c JOIN input_files f USING (job_id, file_index)
ORDER BY c.place
