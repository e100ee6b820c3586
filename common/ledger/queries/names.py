"""Names of jobs, pools and machines that begin as somebody types, for the completion of a shell."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import TextClause, text

from nightshift.common.ledger.connection import Connection

JOBS = text("""
    SELECT id, name, state FROM jobs
    WHERE starts_with(name, :start) OR starts_with(id::text, :start)
    ORDER BY id DESC LIMIT :most
""")
"""The newest jobs whose name or number begins so."""

POOLS = text("""
    SELECT name, string_agg(what, ', ' ORDER BY what) AS what FROM (
        SELECT pool AS name, 'has jobs' AS what FROM jobs WHERE closed_at IS NULL
        UNION SELECT pool, 'has workers' FROM slots WHERE state <> 'lost'
        UNION SELECT pool, 'planned' FROM pool_plans
    ) AS pools WHERE starts_with(name, :start) GROUP BY name ORDER BY name LIMIT :most
""")
"""Pools with open jobs, with slots or with a plan."""

MACHINES = text("""
    SELECT name, min(what) AS what FROM (
        SELECT host AS name, 'host of pool ' || pool AS what FROM slots WHERE state <> 'lost'
        UNION SELECT supervisor, 'worker on ' || host FROM slots WHERE state <> 'lost'
        UNION SELECT name, kind || CASE WHEN drains THEN ', drained' ELSE ', cordoned' END FROM cordons
    ) AS machines WHERE starts_with(name, :start) GROUP BY name ORDER BY name LIMIT :most
""")
"""Hosts and workers with slots, and what is cordoned."""


def jobs(connection: Connection, start: str, most: int) -> list[tuple[str, str]]:
    """Each job by its name, if no newer job has the name, and by its number; with its state."""
    found: dict[str, str] = {}
    for job in connection.execute(JOBS, {"start": start, "most": most}):
        if job.name.startswith(start):
            found.setdefault(job.name, f"job {job.id}, {job.state}")
        if str(job.id).startswith(start):
            found[str(job.id)] = f"{job.name}, {job.state}"
    return list(found.items())[:most]


def pools(connection: Connection, start: str, most: int) -> list[tuple[str, str]]:
    """The pools, and what each has."""
    return _pairs(connection, POOLS, start, most)


def machines(connection: Connection, start: str, most: int) -> list[tuple[str, str]]:
    """The hosts and the workers, and what each is."""
    return _pairs(connection, MACHINES, start, most)


def _pairs(
    connection: Connection, query: TextClause, start: str, most: int
) -> list[tuple[str, str]]:
    rows: Sequence[Any] = connection.execute(query, {"start": start, "most": most}).all()
    return [(row.name, row.what) for row in rows]
