-- Tables of a lake: commits of the parts of jobs, and versions that jobs read.

CREATE TABLE input_versions (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    version bigint NOT NULL,
    table_id text NOT NULL
);
COMMENT ON TABLE input_versions IS
    'Which table a job reads, by the id that the table says, and up to which version the job has all rows that versions have added.';

CREATE TABLE job_tables (
    job_id bigint PRIMARY KEY REFERENCES jobs (id),
    base text
);
COMMENT ON TABLE job_tables IS
    'One row a job whose rows become part of a table: the version that the table had at submit, null before its first.';

CREATE TABLE table_commits (
    job_id bigint NOT NULL REFERENCES jobs (id),
    number integer NOT NULL CHECK (number > 0),
    token integer NOT NULL DEFAULT 1 + floor(random() * 2147483646),
    first_seq bigint NOT NULL,
    stop_seq bigint NOT NULL,
    base text,
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'refused')),
    version text,
    reason text,
    begun_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    PRIMARY KEY (job_id, number)
);
COMMENT ON TABLE table_commits IS
    'One row a commit of parts to a table: open from before the table is written until it is known what became of it.';
CREATE UNIQUE INDEX table_commits_open ON table_commits (job_id) WHERE state = 'open';

CREATE TABLE table_files (
    job_id bigint NOT NULL,
    part_name text NOT NULL,
    seq bigint NOT NULL,
    bytes bigint NOT NULL,
    rows bigint NOT NULL,
    rows_failed bigint NOT NULL,
    added integer NOT NULL,
    removed integer,
    PRIMARY KEY (job_id, part_name),
    FOREIGN KEY (job_id, added) REFERENCES table_commits (job_id, number),
    FOREIGN KEY (job_id, removed) REFERENCES table_commits (job_id, number)
);
COMMENT ON TABLE table_files IS
    'One row a part that a commit adds to the table, and the later commit that removes it, by their numbers.';
CREATE INDEX table_files_seq ON table_files (job_id, seq);
CREATE INDEX table_files_removed ON table_files (job_id, removed) WHERE removed IS NOT NULL;
