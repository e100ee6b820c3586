"""Who changed what, which slots take no work, and jobs whose queued batches or rows are to leave."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Older code neither reads nor writes any of this: ledger_meta.compatible_from stays.
AUDIT = """
CREATE TABLE audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened_at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    host text NOT NULL,
    action text NOT NULL,
    job_id bigint,
    subject text,
    detail jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE audit_log IS
    'One row a change that a person or a program asked for; written in the transaction of the change.';
COMMENT ON COLUMN audit_log.who IS 'User of the operating system, or name of an API key.';
COMMENT ON COLUMN audit_log.host IS 'Machine from which the change was asked for.';
COMMENT ON COLUMN audit_log.job_id IS 'No foreign key: the rows of a deleted job stay.';
COMMENT ON COLUMN audit_log.subject IS 'What was changed where that is not the job: a batch, a host.';
COMMENT ON COLUMN audit_log.detail IS 'Old and new value of each field that changed, and more.';
CREATE INDEX audit_log_by_job ON audit_log (job_id, id) WHERE job_id IS NOT NULL;
"""

# A partial index: few jobs are in it, for less than a second each.
CHANGED_JOBS = """
ALTER TABLE jobs ADD COLUMN requeue_below bigint;
COMMENT ON COLUMN jobs.requeue_below IS
    'Set by a change of the job: batches queued with a lower rank go back to pending first.';
CREATE INDEX jobs_unsettled ON jobs (id) WHERE requeue_below IS NOT NULL;
"""

# Supervisors of before do not read cordons: their slots take work as ever, and no newer plan has them.
CORDONS = """
CREATE TABLE cordons (
    kind text NOT NULL CHECK (kind IN ('host', 'worker')),
    name text NOT NULL,
    drains boolean NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE cordons IS
    'Hosts, workers (supervisors) and slots (SUPERVISOR/SLOT) that take no new work.';
COMMENT ON COLUMN cordons.drains IS 'Their children leave as by SIGTERM, and none is started.';

CREATE VIEW cordoned_slots AS
SELECT s.supervisor, s.slot, bool_or(c.drains) AS drains, min(c.since) AS since
FROM slots s JOIN cordons c
  ON (c.kind, c.name) IN (('host', s.host), ('worker', s.supervisor),
                          ('worker', concat_ws('/', s.supervisor, s.slot)))
GROUP BY s.supervisor, s.slot;
COMMENT ON VIEW cordoned_slots IS 'One row for each known slot that takes no new work.';
"""


def upgrade() -> None:
    """Adds the tables, the column and the view."""
    op.execute(AUDIT)
    op.execute(CHANGED_JOBS)
    op.execute(CORDONS)
