"""Deadlines of jobs in the ledger: what is known of each job that has one, and how one is changed."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import text

from nightshift.common.allocation.deadlines import LEAST_ROWS, Work
from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.statements import statement

COMMITS_LOOKED_AT = 100
"""Latest commits of a job that make its rate: enough for a few percent, and read each second."""

WORKS = statement(__file__, "works")

STANDINGS = text("""
    SELECT id AS job, state, finish_by, finished_at FROM jobs
    WHERE finish_by IS NOT NULL AND id = ANY (:jobs)
""")
"""Those of some jobs that have a deadline, running or not."""


def works(
    connection: Connection, *, pool: str | None = None, job_ids: Collection[int] | None = None
) -> dict[int, Work]:
    """What is known of each running job that has a deadline, of every pool or of one."""
    given = {
        "pool": pool,
        "jobs": None if job_ids is None else list(job_ids),
        "least": LEAST_ROWS,
        "most": COMMITS_LOOKED_AT,
    }
    return {
        row.id: Work(
            rows=row.rows_open,
            seconds_left=row.seconds_left,
            slots=row.slots,
            most_slots=row.most_slots,
            load_seconds=row.load_seconds,
            rate=row.rate,
            measured_seconds_ago=row.measured_seconds_ago,
        )
        for row in connection.execute(WORKS, given)
    }


def standings(connection: Connection, job_ids: Collection[int]) -> dict[int, Row]:
    """`state`, `finish_by` and `finished_at` by job id, for each of these jobs that has a deadline."""
    found = connection.execute(STANDINGS, {"jobs": list(job_ids)}).mappings()
    return {row["job"]: row for row in found}


def finish_by(connection: Connection, job_id: int) -> datetime | None:
    """When a job should be done."""
    statement = text("SELECT finish_by FROM jobs WHERE id = :id")
    found: datetime | None = connection.scalar(statement, {"id": job_id})
    return found


def set_finish_by(connection: Connection, job_id: int, moment: datetime | None) -> None:
    """Another deadline for a job, or none."""
    statement = text("UPDATE jobs SET finish_by = :moment WHERE id = :id")
    connection.execute(statement, {"id": job_id, "moment": moment})
