-- Archived jobs: which, and in which files.

CREATE TABLE job_archives (
    job_id bigint PRIMARY KEY,
    state text NOT NULL DEFAULT 'kept' CHECK (state IN ('kept', 'leaving', 'archived')),
    generation bigint NOT NULL DEFAULT 0,
    needed_at timestamptz,
    files jsonb,
    CHECK ((state = 'kept') = (files IS NULL))
);
COMMENT ON TABLE job_archives IS
    'Closed jobs whose batches, attempts and row errors were archived or read: where these are.';
COMMENT ON COLUMN job_archives.generation IS
    'The fence: the token of the hold under which files were last written; their names contain it.';
COMMENT ON COLUMN job_archives.needed_at IS 'When a command last read the batches of the job.';
COMMENT ON COLUMN job_archives.files IS 'Table, name, rows, bytes and SHA-256 of each file.';
