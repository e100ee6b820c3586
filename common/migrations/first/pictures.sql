-- Pictures of jobs.

CREATE TABLE job_pictures (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    next_at timestamptz DEFAULT now(),
    told_at timestamptz,
    seen_until timestamptz,
    series jsonb NOT NULL DEFAULT '[]',
    lanes jsonb,
    map jsonb
);
COMMENT ON TABLE job_pictures IS
    'One row a job: points of its life, who worked when, and a map of its rows, for the page of the job.';
COMMENT ON COLUMN job_pictures.next_at IS
    'When a reaper looks next; the fence of the look under way; null once a closed job has its last point.';
COMMENT ON COLUMN job_pictures.told_at IS 'The last look.';
COMMENT ON COLUMN job_pictures.seen_until IS 'Leases that ended before are in the lanes.';
COMMENT ON COLUMN job_pictures.series IS
    'At most 500 points: seconds since 1970; rows, rows done, rows failed; prompt tokens and those from a cache, output tokens and those of thoughts. Running totals.';
COMMENT ON COLUMN job_pictures.lanes IS 'At most 2,000 bars, by host and slot.';
COMMENT ON COLUMN job_pictures.map IS 'At most 400 cells over the dataset: rows done, failed, at work, open.';
CREATE INDEX job_pictures_next ON job_pictures (next_at) WHERE next_at IS NOT NULL;

-- A job that is new, closed or opened again is looked at soon, whichever release did so. Commits write nothing here.
CREATE FUNCTION picture_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_pictures (job_id) VALUES (NEW.id)
    ON CONFLICT (job_id) DO UPDATE SET next_at = clock_timestamp();
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_pictured AFTER INSERT ON jobs
    FOR EACH ROW EXECUTE FUNCTION picture_job();
CREATE TRIGGER jobs_pictured_again AFTER UPDATE OF closed_at ON jobs
    FOR EACH ROW WHEN ((OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL))
    EXECUTE FUNCTION picture_job();
