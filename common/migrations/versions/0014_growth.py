"""Datasets that grow: generations of a job's rows, inputs that are watched, and what a look found."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# A reaper of an older release closes a watched job whose rows are done; the next file opens the job
# again. ledger_meta.compatible_from stays as it is.
TABLES = """
CREATE TABLE generations (
    job_id bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number integer NOT NULL CHECK (number > 0),
    source text NOT NULL CHECK (source IN ('submit', 'input', 'files')),
    first_file integer NOT NULL,
    stop_file integer NOT NULL,
    first_row bigint NOT NULL,
    stop_row bigint NOT NULL,
    first_seq integer NOT NULL,
    stop_seq integer NOT NULL,
    planned_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (job_id, number),
    CHECK (first_file <= stop_file AND first_row <= stop_row AND first_seq <= stop_seq)
);
CREATE INDEX generations_unfinished ON generations (job_id, number) WHERE finished_at IS NULL;
COMMENT ON TABLE generations IS
    'How a job grew: files, rows and batches of its submit and of each append. No row for a job that '
    'never grew and is not watched.';
COMMENT ON COLUMN generations.source IS
    'submit: the first snapshot; input: files of the spec''s own input; files: files that were named.';
COMMENT ON COLUMN generations.finished_at IS
    'When the file about its parts was written; null while one of its batches is open.';

CREATE TABLE job_watches (
    job_id bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    every_seconds integer NOT NULL CHECK (every_seconds > 0),
    next_look_at timestamptz NOT NULL DEFAULT now(),
    looking_until timestamptz,
    looked_at timestamptz,
    files_listed bigint,
    listing text,
    error text
);
COMMENT ON TABLE job_watches IS 'Jobs whose input is looked at again and again (input.watch).';
COMMENT ON COLUMN job_watches.looking_until IS
    'Until then one reaper looks: a courtesy, since two looks at once do no harm.';
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
    PRIMARY KEY (job_id, uri),
    CHECK ((state = 'refused') = (why IS NOT NULL))
);
COMMENT ON TABLE unplanned_files IS
    'Files of watched inputs that are not as planned: new ones that wait for a second equal look or '
    'do not fit, and planned ones that changed or are gone.';
COMMENT ON COLUMN unplanned_files.seen_at IS 'The look that first saw the file with these facts.';
"""

VIEWS = """
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
"""


def upgrade() -> None:
    """Adds three tables and two views."""
    op.execute(TABLES)
    op.execute(VIEWS)
