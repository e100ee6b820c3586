-- Where each open job stands, as reapers judge it.

CREATE TABLE job_standings (
    job_id bigint PRIMARY KEY,
    state text NOT NULL,
    word text NOT NULL CHECK (word IN ('at work', 'waits', 'done', 'failed', 'paused', 'cancelled')),
    kind text NOT NULL,
    sentence text NOT NULL,
    guest_sentence text NOT NULL,
    needs_person boolean NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    told_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor=50);
COMMENT ON TABLE job_standings IS
    'One row a job that is open, or failed within a week: whether it is at work or waits, why, and whether it needs a person.';
COMMENT ON COLUMN job_standings.state IS
    'The state that the job had then: with another one now, the row is out of date.';
COMMENT ON COLUMN job_standings.guest_sentence IS
    'The sentence without names of machines, of jobs of other tenants and of their people.';
COMMENT ON COLUMN job_standings.since IS 'When the kind began.';
COMMENT ON COLUMN job_standings.told_at IS 'When the row was written.';
CREATE INDEX job_standings_for_persons ON job_standings (job_id) WHERE needs_person;

CREATE VIEW waiting_jobs AS
SELECT s.job_id AS job, s.sentence, s.since
FROM job_standings s JOIN jobs j ON j.id = s.job_id AND j.state = s.state
WHERE s.word = 'waits' AND EXISTS (SELECT FROM holds WHERE kind = 'standings' AND until > now());
COMMENT ON VIEW waiting_jobs IS
    'One row for each job that waits, and why; empty while no reaper keeps job_standings up to date.';
