"""What monitoring asks, from the documented views: jobs, pools and workers as they stand."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection

ROW_STATES = ("total", "done", "failed")
BATCH_STATES = ("pending", "queued", "leased", "done", "dead")


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job of job_progress: its rows and batches by state."""

    job: int
    name: str
    pool: str
    status: str
    rows: Mapping[str, int]
    batches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool with open work: pool_demand over all of its engines."""

    pool: str
    batches_waiting: int
    batches_leased: int
    desired_workers: int


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Living children of a pool in one state."""

    pool: str
    state: str
    workers: int


def jobs(connection: Connection, recent_seconds: float, most: int) -> tuple[list[JobFigures], int]:
    """Jobs that are open or were closed so lately, at most so many, and how many more there are.

    Running ones come first, then paused ones, each the oldest first; then the last closed ones.
    """
    found = connection.execute(
        text("""
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
        """),
        {"recent": recent_seconds, "most": most},
    )
    rows = list(found.mappings())
    figures = [
        JobFigures(
            row["job"],
            row["name"],
            row["pool"],
            row["status"],
            {state: row[f"rows_{state}"] for state in ROW_STATES},
            {state: row[f"batches_{state}"] for state in BATCH_STATES},
        )
        for row in rows
    ]
    return figures, max(0, rows[0]["left_out"]) if rows else 0


def pools(connection: Connection) -> list[PoolFigures]:
    """Every pool with open work, and with zeros every other one that has living children."""
    found = connection.execute(
        text("""
            SELECT pool, sum(waiting)::bigint AS batches_waiting,
                   sum(leased)::bigint AS batches_leased, sum(desired)::bigint AS desired_workers
            FROM (SELECT pool, batches_waiting, batches_leased, desired_workers FROM pool_demand
                  UNION ALL SELECT DISTINCT pool, 0, 0, 0 FROM worker_status)
                 AS d (pool, waiting, leased, desired)
            GROUP BY pool ORDER BY pool
        """)
    )
    return [PoolFigures(**row) for row in found.mappings()]


def living(connection: Connection) -> list[WorkerFigures]:
    """Living children by pool and state."""
    found = connection.execute(
        text("""
            SELECT pool, state, count(*) AS workers FROM worker_status
            GROUP BY pool, state ORDER BY pool, state
        """)
    )
    return [WorkerFigures(**row) for row in found.mappings()]
