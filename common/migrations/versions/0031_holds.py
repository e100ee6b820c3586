"""Holds: one table for who works on a job's finish, archive or input, or on an API batch, now."""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# Processes of an older release know the columns, and not the table.
TABLE = """
CREATE SEQUENCE hold_tokens;
CREATE TABLE holds (
    kind text NOT NULL CHECK (kind IN ('finish', 'archive', 'look', 'api_batch')),
    subject text NOT NULL,
    token bigint NOT NULL,
    holder text NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (kind, subject)
);
COMMENT ON TABLE holds IS
    'What one process has to itself for a while: a finish, an archive, a look, an API batch.';
COMMENT ON COLUMN holds.subject IS 'Number of a job, or id of an API batch.';
COMMENT ON COLUMN holds.token IS 'New at each take: what the holder writes names the token.';
COMMENT ON COLUMN holds.until IS 'From then on anybody may take the subject.';

-- Names of files have the generation of their archive, which is a token from now on.
ALTER TABLE job_archives ALTER COLUMN generation TYPE bigint;
COMMENT ON COLUMN job_archives.generation IS
    'The fence: the token of the hold under which files were last written; stands in their names.';
SELECT setval('hold_tokens', greatest(nextval('hold_tokens'), max(generation))) FROM job_archives
HAVING max(generation) IS NOT NULL;

INSERT INTO holds SELECT 'finish', id, nextval('hold_tokens'), finisher, finisher_until
FROM jobs WHERE finisher_until IS NOT NULL AND closed_at IS NULL;
INSERT INTO holds SELECT 'archive', job_id, nextval('hold_tokens'), 'reaper', held_until
FROM job_archives WHERE held_until IS NOT NULL;
INSERT INTO holds SELECT 'look', job_id, nextval('hold_tokens'), 'reaper', looking_until
FROM job_watches WHERE looking_until IS NOT NULL;
INSERT INTO holds SELECT 'api_batch', id, nextval('hold_tokens'), held_by, held_until
FROM api_batches WHERE held_by IS NOT NULL AND held_until IS NOT NULL;

ALTER TABLE jobs DROP COLUMN finisher, DROP COLUMN finisher_until;
ALTER TABLE job_archives DROP COLUMN held_until;
ALTER TABLE job_watches DROP COLUMN looking_until;
ALTER TABLE api_batches DROP COLUMN held_by, DROP COLUMN held_until;
UPDATE ledger_meta SET compatible_from = 31 WHERE compatible_from < 31;
"""


def upgrade() -> None:
    """Adds the table, moves what is held, and drops the columns that said so."""
    op.execute(TABLE)
