"""What monitoring asks, from the documented views: jobs, pools and workers as they stand."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from common.ledger.connection import Connection

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


def jobs(connection: Connection, recent_seconds: float, most: int) -> list[JobFigures]:
    """Jobs that are open or were closed so lately, at most so many, open and new ones first."""
    found = connection.execute(
        text("""
            SELECT job, name, pool, status,
                   rows_total, rows_done, rows_failed,
                   batches_pending, batches_queued, batches_leased, batches_done, batches_dead
            FROM job_progress
            WHERE status IN ('running', 'paused')
               OR finished_at > now() - make_interval(secs => :recent)
            ORDER BY status IN ('running', 'paused') DESC, job DESC LIMIT :most
        """),
        {"recent": recent_seconds, "most": most},
    )
    return [
        JobFigures(
            row["job"],
            row["name"],
            row["pool"],
            row["status"],
            {state: row[f"rows_{state}"] for state in ROW_STATES},
            {state: row[f"batches_{state}"] for state in BATCH_STATES},
        )
        for row in found.mappings()
    ]


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
