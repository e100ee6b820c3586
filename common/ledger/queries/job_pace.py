"""Jobs as people look at them: job_progress with the pace and the signs of job_pace."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import outages

Looked = dict[str, Any]
"""A row of job_progress with the columns of job_pace."""

JOBS = f"""
    SELECT p.*, k.workers, k.loading_seconds, k.seconds_since_sign, k.worked_seconds, k.model,
           k.remark,
           coalesce(w.waiting_for_files, false) AS waiting_for_files, away.told,
           away.children_waiting,
           s.rows_shared, s.cached_tokens, s.reasoning_tokens,
           (SELECT resolved FROM jobs WHERE id = p.job) AS resolved,
           s.cached_tokens::float8 / nullif(s.prompt_tokens_spent, 0) AS cached_fraction
    FROM job_progress p JOIN job_pace k USING (job) JOIN job_sharing s USING (job)
    LEFT JOIN watch_status w USING (job)
    CROSS JOIN LATERAL (
        SELECT count(*) AS told,
               count(DISTINCT o.who) FILTER (WHERE o.engine_key IS NOT NULL) AS children_waiting
        FROM outages o JOIN jobs j ON j.id = p.job AND {outages.OF_JOB}
    ) AS away
"""


def listed(connection: Connection, limit: int = 1000) -> list[Looked]:
    """The newest jobs, the last one first."""
    found = connection.execute(LISTED, {"limit": limit})
    return [_looked(row) for row in found.mappings()]


def of(connection: Connection, job_id: int) -> Looked:
    """One job."""
    return _looked(connection.execute(ONE, {"id": job_id}).mappings().one())


def some(connection: Connection, job_ids: Sequence[int]) -> list[Looked]:
    """These jobs, the last one first."""
    return [_looked(row) for row in connection.execute(SOME, {"ids": list(job_ids)}).mappings()]


def unfinished(connection: Connection, limit: int) -> list[Looked]:
    """Jobs that run or are paused, the last one first."""
    return [_looked(row) for row in connection.execute(UNFINISHED, {"limit": limit}).mappings()]


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


def stands(told: int, waiting: int, workers: int, rows_left: int) -> bool:
    """Whether a job stands still, of which `told` outages are known: all of its `workers` are among the `waiting`
    children, or no row is left and the end of the job waits.
    """
    return told > 0 and (rows_left == 0 or waiting >= workers)


def _looked(row: RowMapping) -> Looked:
    """A row with its rates. Without a worker that has the engine, the end of the job is unknown. A job that waits
    for files has no rate, and neither has a job of which every worker, or the end, waits for something that is
    away: the measured rate is an old one.
    """
    values = dict(row)
    left = values["rows_total"] - values["rows_done"] - values["rows_failed"]
    told, waiting = values.pop("told"), values.pop("children_waiting")
    values["stands"] = stands(told, waiting, values["workers"] or 0, left)
    if values["waiting_for_files"] or values["stands"]:
        values["rows_per_second"] = values["output_tokens_per_second"] = None
    rate = values["rows_per_second"]
    values["eta_seconds"] = round(left / rate, 1) if rate and values["workers"] else None
    return values
