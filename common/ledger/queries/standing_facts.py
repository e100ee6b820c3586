"""What decides whether jobs move, of many jobs at once: each question is asked once for all of them."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row
from nightshift.common.ledger.queries.job_facts import LIVING_SECONDS

JOBS = text("""
    SELECT j.id, j.state, j.reason, j.pool, j.engine_key, j.priority, j.tenant, j.max_parallel,
           j.finish_by IS NOT NULL AS has_deadline, j.closed_at IS NOT NULL AS closed,
           j.archived_at IS NOT NULL AS is_archived,
           extract(epoch FROM now() - j.created_at)::float8 AS age_seconds,
           now() AS read_at, j.state_since,
           CASE WHEN j.closed_at IS NULL THEN greatest(
               (SELECT max(ended_at) FROM attempts
                WHERE job_id = j.id AND outcome IN ('done', 'split')),
               (SELECT max(ended_at) FROM attempts
                WHERE job_id = j.id AND outcome IN ('failed', 'released', 'lost')),
               (SELECT planned_at FROM generations WHERE job_id = j.id ORDER BY number DESC LIMIT 1)
           ) END AS moved_at,
           extract(epoch FROM now() - j.finished_at)::float8 AS finished_seconds,
           w.every_seconds AS watch_seconds, w.error AS watch_error,
           u.files AS files_left, u.why AS file_left_why, c.*
    FROM jobs j LEFT JOIN job_watches w ON w.job_id = j.id
    LEFT JOIN LATERAL (
        SELECT count(*) AS files, (array_agg(why ORDER BY uri))[1] AS why FROM unplanned_files
        WHERE job_id = w.job_id AND why IS NOT NULL
    ) AS u ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(rows_total), 0)::bigint AS rows_total,
               coalesce(sum(rows_done), 0)::bigint AS rows_done,
               coalesce(sum(rows_failed), 0)::bigint AS rows_failed,
               coalesce(sum(batches_pending), 0)::bigint AS pending,
               coalesce(sum(batches_queued), 0)::bigint AS queued,
               coalesce(sum(batches_leased), 0)::bigint AS leased
        FROM job_counters WHERE job_id = j.id
    ) AS c
    WHERE j.id = ANY (CAST(:ids AS bigint[]))
""")
"""The jobs with their counters and watches."""

REAPER = text("SELECT extract(epoch FROM now() - max(seen_at))::float8 FROM reapers")
"""The age of the last sign of any reaper."""

WORKERS_SEEN = text("""
    SELECT pool, max(coalesce(ended_at, seen_at)) AS seen_at FROM workers
    WHERE pool = ANY (CAST(:pools AS text[])) GROUP BY pool
""")
"""The last sign of any worker of each pool."""

CHILDREN = text("""
    SELECT b.job_id, count(DISTINCT b.owner) AS children
    FROM batches b JOIN workers w ON w.id = b.owner
    WHERE b.state = 'leased' AND b.job_id = ANY (CAST(:ids AS bigint[]))
      AND w.seen_at > now() - make_interval(secs => :alive)
    GROUP BY b.job_id
""")
"""Living workers that have leases of each job."""

STALLED = text("SELECT job, stalled FROM job_stalls WHERE job = ANY (CAST(:ids AS bigint[]))")
"""Jobs with an open outage, and whether each is stalled."""

RESTING = text("""
    SELECT job_id, count(*) AS batches, extract(epoch FROM max(not_before) - now())::float8 AS seconds,
           (array_agg(last_error ORDER BY not_before DESC))[1] AS error
    FROM batches
    WHERE job_id = ANY (CAST(:ids AS bigint[])) AND state = 'pending' AND not_before > now()
    GROUP BY job_id
""")
"""Batches of each job that wait after an error."""

FIRST = text("""
    SELECT DISTINCT ON (j.pool, j.engine_key)
           j.pool, j.engine_key, j.id AS job, j.name, j.priority
    FROM jobs j
    WHERE j.state = 'running'
      AND (j.pool, j.engine_key) IN (
          SELECT pool, engine_key FROM jobs WHERE id = ANY (CAST(:ids AS bigint[])))
      AND (SELECT sum(batches_pending + batches_queued) FROM job_counters WHERE job_id = j.id) > 0
    ORDER BY j.pool, j.engine_key, j.priority DESC, j.id
""")
"""Of the jobs with work that each of these engines is for, the one that goes first."""

TENANTS = text("SELECT id, tenant FROM jobs WHERE id = ANY (CAST(:ids AS bigint[]))")
"""Whose jobs these are."""


def jobs(connection: Connection, ids: Collection[int]) -> list[Row]:
    """The jobs, without their specs."""
    return list(connection.execute(JOBS, {"ids": list(ids)}).mappings())


def reaper_seconds(connection: Connection) -> float | None:
    """Seconds since the last sign of any reaper; None where none is known."""
    found: float | None = connection.scalar(REAPER)
    return found


def workers_seen(connection: Connection, pools: Collection[str]) -> dict[str, datetime]:
    """Return when a worker was seen last, by pool; without pools that never had one."""
    found = connection.execute(WORKERS_SEEN, {"pools": list(pools)})
    return {row.pool: row.seen_at for row in found}


def children(connection: Connection, ids: Collection[int]) -> dict[int, int]:
    """Living workers that have leases, by job."""
    given = {"ids": list(ids), "alive": LIVING_SECONDS}
    return {row.job_id: row.children for row in connection.execute(CHILDREN, given)}


def stalled(connection: Connection, ids: Collection[int]) -> dict[int, bool]:
    """Return whether each job with an open outage is stalled; nothing for a job without one."""
    return {row.job: row.stalled for row in connection.execute(STALLED, {"ids": list(ids)})}


def resting(connection: Connection, ids: Collection[int]) -> dict[int, Row]:
    """`batches`, `seconds` and `error` of what waits after an error, by job."""
    found = connection.execute(RESTING, {"ids": list(ids)}).mappings()
    return {row["job_id"]: row for row in found}


def first(connection: Connection, ids: Collection[int]) -> dict[tuple[str, str], Row]:
    """The job that goes first, by pool and engine key, of the pools and engines of these jobs."""
    found = connection.execute(FIRST, {"ids": list(ids)}).mappings()
    return {(row["pool"], row["engine_key"]): row for row in found}


def tenants(connection: Connection, ids: Collection[int]) -> dict[int, str]:
    """The tenant of each job."""
    if not ids:
        return {}
    return {row.id: row.tenant for row in connection.execute(TENANTS, {"ids": list(ids)})}
