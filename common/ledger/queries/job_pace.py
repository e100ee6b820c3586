"""Jobs as every view shows them: job_progress with what their rows had in common, and their pace."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ranges import Range

JOBS = """
    SELECT p.*, s.rows_shared, s.cached_tokens, s.reasoning_tokens,
           (SELECT resolved FROM jobs WHERE id = p.job) AS resolved,
           s.cached_tokens::float8 / nullif(s.prompt_tokens_spent, 0) AS cached_fraction
    FROM job_progress p JOIN job_sharing s USING (job)
"""

UNFINISHED = text(JOBS + "WHERE p.status IN ('running', 'paused') ORDER BY job DESC LIMIT :limit")
"""Jobs that are not over, newest first."""

LISTED = text(JOBS + "ORDER BY job DESC LIMIT :limit")
"""Jobs, newest first."""

SOME = text(JOBS + "WHERE job = ANY (CAST(:ids AS bigint[])) ORDER BY job DESC")
"""Some jobs, newest first."""

ONE = text(f"""
    SELECT one.*, j.id_counts,
           (SELECT coalesce(sum(f.rows_left_out), 0)::bigint FROM input_files f
            WHERE f.job_id = j.id) AS rows_left_out
    FROM ({JOBS} WHERE job = :id) AS one JOIN jobs j ON j.id = one.job
""")
"""One job, also with what is known of its ids, and of the rows that its condition leaves out."""

ETAS = text("""
    SELECT job, eta_seconds::float8, eta_seconds_low::float8, eta_seconds_high::float8,
           rows_per_second::float8, rows_per_second_low::float8, rows_per_second_high::float8
    FROM job_pace WHERE job = ANY (CAST(:ids AS bigint[])) AND rows_per_second IS NOT NULL
""")
"""The paces of some jobs."""

Looked = dict[str, Any]
"""A row of JOBS by column."""


class Pace(NamedTuple):
    """Rows per second of a job, and the seconds until its last row at that pace; `eta` is None without a worker.

    The view `job_pace` computes both, for every reader: `rows_per_second` over the time at work of the latest commits,
    the bounds as the 10th and the 90th percentile of the rates of blocks of these commits. At the high rate the job ends
    after the low number of seconds.
    """

    rows_per_second: Range
    eta: Range | None


def pace(row: Mapping[Any, Any]) -> Pace | None:
    """Return the pace in a row of JOBS or of job_pace; None for a job without one."""
    rate = _range(row, "rows_per_second")
    return None if rate is None else Pace(rate, _range(row, "eta_seconds"))


def likely_eta(known: Pace | None) -> float | None:
    """Return the likely seconds to the end; None if they are unknown."""
    return None if known is None or known.eta is None else known.eta.likely


def _range(row: Mapping[Any, Any], name: str) -> Range | None:
    likely, low, high = (row[f"{name}{bound}"] for bound in ("", "_low", "_high"))
    if likely is None:
        return None
    if low is None:
        return Range.exactly(float(likely))
    # At a low rate of 0 the job never ends.
    return Range(float(low), float(likely), math.inf if high is None else float(high))


def listed(connection: Connection, limit: int = 1000) -> list[Looked]:
    """Return the newest jobs, newest first."""
    return _rows(connection, LISTED, {"limit": limit})


def of(connection: Connection, job_id: int) -> Looked:
    """Return one job."""
    return dict(connection.execute(ONE, {"id": job_id}).mappings().one())


def some(connection: Connection, job_ids: Sequence[int]) -> list[Looked]:
    """Return these jobs, newest first."""
    return _rows(connection, SOME, {"ids": list(job_ids)})


def unfinished(connection: Connection, limit: int) -> list[Looked]:
    """Return jobs that run or are paused, newest first."""
    return _rows(connection, UNFINISHED, {"limit": limit})


def paces(connection: Connection, job_ids: Sequence[int]) -> dict[int, Pace]:
    """Return the pace of each job that has one."""
    found = connection.execute(ETAS, {"ids": list(job_ids)}).mappings()
    return {row["job"]: each for row in found if (each := pace(row)) is not None}


def _rows(connection: Connection, statement: Any, values: Mapping[str, Any]) -> list[Looked]:
    return [dict(row) for row in connection.execute(statement, values).mappings()]
