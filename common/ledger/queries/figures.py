"""What monitoring asks, from the documented views: jobs, pools and workers as they stand."""

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row


def jobs(connection: Connection, recent_seconds: float, most: int) -> tuple[list[Row], int]:
    """Jobs that run, are paused or ended in the last `recent_seconds`: at most `most`, and how many more there
    are.

    Running ones come first, then paused ones, each the oldest first; then the last closed ones.
    """
    statement = text("""
        WITH found AS (
            SELECT id, count(*) OVER () AS jobs,
                   row_number() OVER (
                       ORDER BY state = 'running' DESC, state = 'paused' DESC,
                                CASE WHEN state IN ('running', 'paused') THEN id END,
                                finished_at DESC, id DESC
                   ) AS place
            FROM jobs
            WHERE state IN ('running', 'paused')
               OR finished_at > now() - make_interval(secs => :recent)
        )
        SELECT p.job, p.name, p.pool, p.status, p.rows_total, p.rows_done, p.rows_failed,
               p.batches_pending, p.batches_queued, p.batches_leased, p.batches_done,
               p.batches_dead, f.jobs - :most AS left_out
        FROM found AS f JOIN job_progress AS p ON p.job = f.id
        WHERE f.place <= :most
        ORDER BY f.place
    """)
    found = connection.execute(statement, {"recent": recent_seconds, "most": most})
    rows = list(found.mappings())
    return rows, max(0, rows[0]["left_out"]) if rows else 0


def pools(connection: Connection) -> list[Row]:
    """Every pool with open work, and with zeros every other one with living children or machines set
    aside.
    """
    statement = text("""
        SELECT pool, sum(waiting)::bigint AS batches_waiting,
               sum(leased)::bigint AS batches_leased, sum(desired)::bigint AS desired_workers,
               (SELECT count(DISTINCT supervisor) FROM machines_set_aside m
                WHERE m.pool = d.pool) AS machines_set_aside
        FROM (SELECT pool, batches_waiting, batches_leased, desired_workers FROM pool_demand
              UNION ALL SELECT DISTINCT pool, 0, 0, 0 FROM worker_status
              UNION ALL SELECT DISTINCT pool, 0, 0, 0 FROM machines_set_aside)
             AS d (pool, waiting, leased, desired)
        GROUP BY pool ORDER BY pool
    """)
    return list(connection.execute(statement).mappings())


def living(connection: Connection) -> list[Row]:
    """Living children by pool and state."""
    statement = text("""
        SELECT pool, state, count(*) AS workers FROM worker_status
        GROUP BY pool, state ORDER BY pool, state
    """)
    return list(connection.execute(statement).mappings())
