-- Inputs that are watched.

CREATE TABLE job_watches (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    every_seconds integer NOT NULL CHECK (every_seconds > 0),
    next_look_at timestamptz NOT NULL DEFAULT now(),
    looked_at timestamptz,
    files_listed bigint,
    listing text,
    error text
);
COMMENT ON TABLE job_watches IS 'Jobs whose input is looked at again and again (input.watch).';
COMMENT ON COLUMN job_watches.listing IS
    'Hash of the last listing: an equal one needs no comparison with the files of the job.';
COMMENT ON COLUMN job_watches.error IS 'Why the last look came to nothing.';

CREATE TABLE unplanned_files (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    uri text NOT NULL,
    size bigint NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'refused', 'changed', 'gone')),
    seen_at timestamptz NOT NULL,
    why text,
    CHECK (CASE state WHEN 'refused' THEN why IS NOT NULL WHEN 'waiting' THEN true ELSE why IS NULL END),
    PRIMARY KEY (job_id, uri)
);
COMMENT ON TABLE unplanned_files IS
    'Files of watched inputs that are not as planned: new ones that wait for a second equal look or do not fit, and planned ones that changed or are gone.';
COMMENT ON COLUMN unplanned_files.seen_at IS 'The look that first saw the file with these facts.';
COMMENT ON COLUMN unplanned_files.why IS
    'Why the file is refused, or why one that two looks saw unchanged still waits.';

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
