"""A slot whose killed child the kernel does not let go is lost, and stands so in worker_status."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Older supervisors lose no slot, and older plans leave no lost slot out: compatible_from stays.
STATES = """
ALTER TABLE slots DROP CONSTRAINT slots_state_check;
ALTER TABLE slots ADD CONSTRAINT slots_state_check
    CHECK (state IN ('free', 'loading', 'ready', 'draining', 'lost'));
"""

VIEW = """
CREATE OR REPLACE VIEW worker_status AS
SELECT w.id AS worker, w.pool, w.slot, w.host, w.pid,
       CASE WHEN s.worker_id IS NULL THEN w.state ELSE 'lost' END AS state,
       w.engine, w.engine_version, w.engine_key, w.window_rows,
       coalesce(l.batches, 0) AS batches_leased, coalesce(l.row_count, 0) AS rows_leased,
       round(extract(epoch FROM now() - w.seen_at)::numeric, 1) AS seconds_since_seen,
       w.started_at, w.ready_at, w.error,
       (SELECT count(*) FROM machines_set_aside m
        WHERE m.pool = w.pool AND m.supervisor = w.supervisor) AS engines_set_aside
FROM workers w
LEFT JOIN slots s ON s.worker_id = w.id AND s.state = 'lost'
                 AND s.seen_at > now() - interval '1 minute'
LEFT JOIN LATERAL (
    SELECT count(*) AS batches, sum(b.row_count) AS row_count
    FROM batches b WHERE b.owner = w.id AND b.state = 'leased'
) AS l ON true
WHERE w.state <> 'ended' OR s.worker_id IS NOT NULL;
COMMENT ON VIEW worker_status IS
    'One row a living worker child: its engine and what it holds; lost: a killed child that the '
    'kernel does not let go, and whose slot nobody can use.';
"""


def upgrade() -> None:
    """Allows the state, and shows it."""
    op.execute(STATES)
    op.execute(VIEW)
