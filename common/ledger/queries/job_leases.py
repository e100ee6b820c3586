"""Leases of a job over its whole life, as the page of the job draws them; however many there are, few are read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

MOST = 2_000
"""Leases that are read of the whole life of a job."""

MOST_UNHAPPY = 500
"""Leases without an answer that are read besides, the latest."""

LEASE = """
    SELECT a.batch_id, a.attempt, b.seq, w.host, w.slot, a.worker_id AS worker, a.outcome,
           extract(epoch FROM w.started_at)::float8 AS started,
           extract(epoch FROM w.ready_at)::float8 AS ready,
           extract(epoch FROM a.claimed_at)::float8 AS claimed,
           extract(epoch FROM a.ended_at)::float8 AS ended,
           coalesce(a.row_count, 0) AS rows,
           -- The rows of a dead batch failed with its last lease. Once the job is finished, a part has their errors.
           CASE WHEN b.state <> 'dead' OR a.attempt <> b.attempt THEN coalesce(a.rows_failed, 0)
                WHEN b.part_name IS NULL THEN b.row_count
                WHEN b.redo IS NOT NULL THEN b.redo_count ELSE b.rows_failed END AS failed,
           coalesce(a.prompt_tokens, 0) AS prompt, coalesce(a.output_tokens, 0) AS output
"""

SPREAD = text(
    """
    """
    + LEASE
    + """
    FROM generate_series(0, (:places - 1) / :step) AS piece(number)
    -- One place of each piece, not always the same one: workers take turns, and a fixed one could be that of one worker.
    JOIN batches b ON b.job_id = :id
      AND b.seq = number * :step + (number * 2654435761 >> 16) % :step
    JOIN attempts a ON a.batch_id = b.id LEFT JOIN workers w ON w.id = a.worker_id
    WHERE a.ended_at IS NOT NULL
    ORDER BY a.ended_at DESC LIMIT :most
"""
)
"""The leases of one of `step` places of the dataset, by indexes alone: each piece of `step` places has one."""

UNHAPPY = text(
    LEASE
    + """
    FROM (SELECT * FROM attempts WHERE job_id = :id AND outcome IN ('failed', 'released', 'lost')
          ORDER BY ended_at DESC LIMIT :most) AS a
    JOIN batches b ON b.id = a.batch_id LEFT JOIN workers w ON w.id = a.worker_id
"""
)
"""The latest leases without an answer, by indexes alone."""

RUNNING = text("""
    SELECT b.seq, w.host, w.slot, a.worker_id AS worker, b.row_count AS rows,
           extract(epoch FROM a.claimed_at)::float8 AS claimed
    FROM batches b JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
    LEFT JOIN workers w ON w.id = a.worker_id
    WHERE b.state = 'leased' AND b.job_id = :id LIMIT :most
""")
"""Leases that run now."""

LOADING = text("""
    SELECT w.host, w.slot, extract(epoch FROM w.started_at)::float8 AS started
    FROM workers w JOIN jobs j USING (pool, engine_key)
    WHERE j.id = :id AND w.state = 'loading' AND w.seen_at > now() - interval '1 minute'
""")
"""Children that load the engine of a job now."""

TIMES = text("""
    SELECT extract(epoch FROM now())::float8 AS now,
           extract(epoch FROM coalesce(started_at, created_at))::float8 AS began,
           extract(epoch FROM closed_at)::float8 AS closed,
           extract(epoch FROM finish_by)::float8 AS finish_by
    FROM jobs WHERE id = :id
""")
"""The moments of a job, in seconds since 1970."""

REACHED = text("""
    SELECT least(plan.last, greatest(latest.last, begun.batches - 1)) + 1 AS places
    FROM (SELECT max(seq) AS last FROM batches WHERE job_id = :id) AS plan
    CROSS JOIN (
        SELECT coalesce(max(b.seq), -1) AS last
        FROM (
            (SELECT batch_id FROM attempts WHERE job_id = :id AND outcome IN ('done', 'split')
             ORDER BY ended_at DESC LIMIT :latest)
            UNION ALL
            (SELECT batch_id FROM attempts
             WHERE job_id = :id AND outcome IN ('failed', 'released', 'lost')
             ORDER BY ended_at DESC LIMIT :latest)
        ) AS a JOIN batches b ON b.id = a.batch_id
    ) AS latest
    CROSS JOIN (
        SELECT coalesce(sum(batches_leased + batches_done + batches_dead), 0) AS batches
        FROM job_counters WHERE job_id = :id
    ) AS begun
""")
"""The places of the dataset that were reached, from its begin: as many as batches were begun, and those up to the
latest leases. Batches run about in the order of the dataset, and run again behind others.
"""

LATEST = 200
"""Leases of either kind that say how far a job is."""


class Leases(NamedTuple):
    """Leases that ended, as mappings: `seq`, `host` (None for a child that the ledger has forgotten), `slot`, `worker`,
    `outcome`, `rows` and those of them that `failed`, `prompt` and `output` tokens, and in seconds since 1970
    `started`, `ready` (of the child), `claimed`, `ended`.

    `spread` are those of one of `step` places of the dataset: all leases if `step` is 1. `unhappy` are the latest ones
    without an answer.
    """

    step: int
    spread: Sequence[Mapping[Any, Any]]
    unhappy: Sequence[Mapping[Any, Any]]


def ended(connection: Connection, job_id: int, most: int = MOST) -> Leases:
    """Return the leases of a job that ended: all of them, or `most` at most, spread evenly over the places of the
    dataset that were reached. Batches run about in the order of the dataset, so that they are spread over the life of
    the job, too.
    """
    places = int(connection.scalar(REACHED, {"id": job_id, "latest": LATEST}) or 0)
    step = max(-(-places // most), 1)
    while True:
        given = {"id": job_id, "places": places, "step": step, "most": most + 1}
        spread = connection.execute(SPREAD, given).mappings().all()
        # Batches that ran several times have several leases; of one batch with too many the latest remain.
        if len(spread) <= most or step >= places:
            break
        step *= 2
    unhappy = connection.execute(UNHAPPY, {"id": job_id, "most": MOST_UNHAPPY}).mappings().all()
    return Leases(step, spread[:most], unhappy)


def running(connection: Connection, job_id: int, most: int) -> Sequence[Row]:
    """Leases of a job that run now, `most` of them, as those of `ended` without an end."""
    return connection.execute(RUNNING, {"id": job_id, "most": most}).mappings().all()


def loading(connection: Connection, job_id: int) -> Sequence[Row]:
    """Children that load the engine of a job now, with `host`, `slot` and `started`."""
    return connection.execute(LOADING, {"id": job_id}).mappings().all()


def times(connection: Connection, job_id: int) -> Row:
    """`now`, and when the job `began`, was `closed`, and should `finish_by`, in seconds since 1970."""
    return connection.execute(TIMES, {"id": job_id}).mappings().one()
