"""A bounded sample of the leases of a job, spread over its whole life, for the charts on its page."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, Row

MAX_LEASES = 2_000
"""Maximum size of the sample."""

MAX_UNSUCCESSFUL = 500
"""Maximum number of failed, lost and released leases that are read in addition, latest first."""

RECENT_LEASES = 200
"""How many of the latest leases show how far the job has come, for each kind of outcome."""

LEASE = """
    SELECT a.batch_id, a.attempt, b.seq, w.host, w.slot, a.worker_id AS worker, a.outcome,
           extract(epoch FROM w.started_at)::float8 AS started,
           extract(epoch FROM w.ready_at)::float8 AS ready,
           extract(epoch FROM a.claimed_at)::float8 AS claimed,
           extract(epoch FROM a.ended_at)::float8 AS ended,
           coalesce(a.row_count, 0) AS rows,
           -- The rows of a dead batch failed with its last lease; the finish of the job writes them to an error part.
           CASE WHEN b.state <> 'dead' OR a.attempt <> b.attempt THEN coalesce(a.rows_failed, 0)
                WHEN b.part_name IS NULL THEN b.row_count
                WHEN b.redo IS NOT NULL THEN b.redo_count ELSE b.rows_failed END AS failed,
           coalesce(a.prompt_tokens, 0) AS prompt, coalesce(a.output_tokens, 0) AS output
"""

SAMPLE = text(
    """
    """
    + LEASE
    + """
    FROM generate_series(0, (:reached - 1) / :stride) AS stratum(number)
    -- A pseudo-random seq of each stratum (multiplicative hashing, Knuth): workers claim in turns, so that a fixed offset
    -- could select the batches of one worker only.
    JOIN batches b ON b.job_id = :id
      AND b.seq = number * :stride + (number * 2654435761 >> 16) % :stride
    JOIN attempts a ON a.batch_id = b.id LEFT JOIN workers w ON w.id = a.worker_id
    WHERE a.ended_at IS NOT NULL
    ORDER BY a.ended_at DESC LIMIT :limit
"""
)
"""Stratified sample: the leases of one batch of every `stride` batches. Reads by index only."""

UNSUCCESSFUL = text(
    LEASE
    + """
    FROM (SELECT * FROM attempts WHERE job_id = :id AND outcome IN ('failed', 'released', 'lost')
          ORDER BY ended_at DESC LIMIT :limit) AS a
    JOIN batches b ON b.id = a.batch_id LEFT JOIN workers w ON w.id = a.worker_id
"""
)
"""The latest failed, lost and released leases. Reads by index only."""

RUNNING = text("""
    SELECT b.seq, w.host, w.slot, a.worker_id AS worker, b.row_count AS rows,
           extract(epoch FROM a.claimed_at)::float8 AS claimed
    FROM batches b JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
    LEFT JOIN workers w ON w.id = a.worker_id
    WHERE b.state = 'leased' AND b.job_id = :id LIMIT :limit
""")
"""Current leases."""

LOADING = text("""
    SELECT w.host, w.slot, extract(epoch FROM w.started_at)::float8 AS started
    FROM workers w JOIN jobs j USING (pool, engine_key)
    WHERE j.id = :id AND w.state = 'loading' AND w.seen_at > now() - interval '1 minute'
""")
"""Children that are loading the engine of a job."""

TIMES = text("""
    SELECT extract(epoch FROM now())::float8 AS now,
           extract(epoch FROM coalesce(started_at, created_at))::float8 AS began,
           extract(epoch FROM closed_at)::float8 AS closed,
           extract(epoch FROM finish_by)::float8 AS finish_by
    FROM jobs WHERE id = :id
""")
"""Start, end and deadline of a job."""

REACHED = text("""
    SELECT least(plan.last, greatest(recent.last, claimed.batches - 1)) + 1 AS reached
    FROM (SELECT max(seq) AS last FROM batches WHERE job_id = :id) AS plan
    CROSS JOIN (
        SELECT coalesce(max(b.seq), -1) AS last
        FROM (
            (SELECT batch_id FROM attempts WHERE job_id = :id AND outcome IN ('done', 'split')
             ORDER BY ended_at DESC LIMIT :recent)
            UNION ALL
            (SELECT batch_id FROM attempts
             WHERE job_id = :id AND outcome IN ('failed', 'released', 'lost')
             ORDER BY ended_at DESC LIMIT :recent)
        ) AS a JOIN batches b ON b.id = a.batch_id
    ) AS recent
    CROSS JOIN (
        SELECT coalesce(sum(batches_leased + batches_done + batches_dead), 0) AS batches
        FROM job_counters WHERE job_id = :id
    ) AS claimed
""")
"""Estimate of the first `seq` that no worker has claimed yet: workers claim batches roughly by `seq`, and retry a batch
later.
"""


class Leases(NamedTuple):
    """Ended leases. Each is a mapping with `batch_id`, `attempt`, `seq`, `worker`, `host` and `slot` (None if the child is
    no longer in the ledger), `outcome`, `rows`, how many of them `failed`, `prompt` and `output` tokens, and times in
    seconds since 1970: `started` and `ready` of the child, `claimed` and `ended` of the lease.

    `sample` has the leases of one of every `stride` batches, all leases if `stride` is 1; `unsuccessful` has the latest
    failed, lost and released ones.
    """

    stride: int
    sample: Sequence[Mapping[Any, Any]]
    unsuccessful: Sequence[Mapping[Any, Any]]


def ended(connection: Connection, job_id: int, limit: int = MAX_LEASES) -> Leases:
    """Return the ended leases of a job, or a sample of at most `limit` that is spread evenly over the batches claimed so
    far. Since workers claim batches roughly by `seq`, the sample is spread over the job's run time as well.
    """
    reached = int(connection.scalar(REACHED, {"id": job_id, "recent": RECENT_LEASES}) or 0)
    stride = max(-(-reached // limit), 1)
    while True:
        values = {"id": job_id, "reached": reached, "stride": stride, "limit": limit + 1}
        sample = connection.execute(SAMPLE, values).mappings().all()
        # A batch that was retried has several leases. A single batch with more than `limit` keeps the latest.
        if len(sample) <= limit or stride >= reached:
            break
        stride *= 2
    values = {"id": job_id, "limit": MAX_UNSUCCESSFUL}
    unsuccessful = connection.execute(UNSUCCESSFUL, values).mappings().all()
    return Leases(stride, sample[:limit], unsuccessful)


def running(connection: Connection, job_id: int, limit: int) -> Sequence[Row]:
    """Return at most `limit` current leases of a job, with `seq`, `host`, `slot`, `worker`, `rows` and `claimed`."""
    return connection.execute(RUNNING, {"id": job_id, "limit": limit}).mappings().all()


def loading(connection: Connection, job_id: int) -> Sequence[Row]:
    """Return the children that are loading the engine of a job, with `host`, `slot` and `started`."""
    return connection.execute(LOADING, {"id": job_id}).mappings().all()


def times(connection: Connection, job_id: int) -> Row:
    """Return `now`, `began`, `closed` and `finish_by` of a job in seconds since 1970; the last two may be None."""
    return connection.execute(TIMES, {"id": job_id}).mappings().one()
