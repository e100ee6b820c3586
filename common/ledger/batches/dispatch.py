"""Admission: what is open, who can take it, and which pending batches become queued."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger.connection import Connection, scan_in_order

DISPATCH_LOCK = 0x6E69676801
"""Advisory lock of the admission duty: one reaper at a time, for one short transaction."""


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A running job with batches to admit or to announce.

    `pending` counts those that may be admitted now; rows are those queued or leased. Tenants share a
    queue by `tenant_weight` among jobs of equal priority, and the jobs of a tenant by `weight`.
    `tenant_rows` are the rows queued or leased of all jobs of the tenant in this queue with this
    priority, also of jobs that have nothing left to admit.
    """

    id: int
    pool: str
    engine_key: str
    priority: int
    max_parallel: int | None
    pending: int
    queued: int
    leased: int
    rows_queued: int
    rows_leased: int
    batch_rows: int
    weight: float = 1.0
    has_deadline: bool = False
    tenant: str = ""
    tenant_weight: float = 1.0
    tenant_rows: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the living children of a queue hold in flight at once."""

    pool: str
    engine_key: str
    children: int
    window_rows: int


def try_duty(connection: Connection, lock: int) -> bool:
    """Takes the lock of a reaper's duty for this transaction; False when another reaper holds it."""
    scan_in_order(connection)
    return bool(connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock}))


def beat(connection: Connection, reaper: str, host: str, code_version: str) -> None:
    """Notes that a reaper lives, and forgets those that were silent for an hour."""
    connection.execute(text("DELETE FROM reapers WHERE seen_at < now() - interval '1 hour'"))
    statement = text("""
        INSERT INTO reapers (name, host, code_version) VALUES (:name, :host, :version)
        ON CONFLICT (name) DO UPDATE SET seen_at = now()
    """)
    connection.execute(statement, {"name": reaper, "host": host, "version": code_version})


def leave(connection: Connection, reaper: str) -> None:
    """A reaper that ends in order counts as living no more."""
    connection.execute(text("DELETE FROM reapers WHERE name = :name"), {"name": reaper})


def open_jobs(connection: Connection) -> list[OpenJob]:
    """Running jobs that have batches to admit or to announce, the highest priority first."""
    statement = text("""
        SELECT * FROM (SELECT j.id, j.pool, j.engine_key, j.priority, j.max_parallel,
               c.pending - off.batches AS pending,
               c.queued, c.leased, c.rows_queued, c.rows_leased,
               coalesce((j.spec #>> '{batch,rows}')::int, 1) AS batch_rows,
               coalesce((j.spec ->> 'weight')::float8, 1) AS weight,
               j.finish_by IS NOT NULL AS has_deadline,
               j.tenant, coalesce(t.weight, 1) AS tenant_weight,
               (sum(c.rows_queued + c.rows_leased)
                OVER (PARTITION BY j.pool, j.engine_key, j.priority, j.tenant))::bigint AS tenant_rows
        FROM jobs j LEFT JOIN tenants t ON t.name = j.tenant CROSS JOIN LATERAL (
            SELECT coalesce(sum(batches_pending), 0)::bigint AS pending,
                   coalesce(sum(batches_queued), 0)::bigint AS queued,
                   coalesce(sum(batches_leased), 0)::bigint AS leased,
                   coalesce(sum(rows_queued), 0)::bigint AS rows_queued,
                   coalesce(sum(rows_leased), 0)::bigint AS rows_leased
            FROM job_counters WHERE job_id = j.id
        ) AS c CROSS JOIN LATERAL (
            -- Batches in backoff must not take others' shares.
            SELECT count(*) AS batches FROM batches b
            WHERE b.job_id = j.id AND b.state = 'pending' AND b.not_before > now()
        ) AS off
        WHERE j.state = 'running') AS running
        WHERE pending > 0 OR queued > 0
        ORDER BY priority DESC, id
    """)
    return [OpenJob(**row) for row in connection.execute(statement).mappings()]


def capacities(connection: Connection, alive_seconds: float) -> list[Capacity]:
    """In-flight capacity of each queue, from children seen within `alive_seconds`."""
    statement = text("""
        SELECT pool, engine_key, count(*) AS children, sum(window_rows)::bigint AS window_rows
        FROM workers
        WHERE state = 'ready' AND seen_at > now() - make_interval(secs => :alive)
        GROUP BY pool, engine_key
    """)
    found = connection.execute(statement, {"alive": alive_seconds}).mappings()
    return [Capacity(**row) for row in found]


def admit_many(connection: Connection, most: Mapping[int, int], rank: int) -> dict[int, int]:
    """Moves pending batches of running jobs to queued, at most as many of each as `most` says by
    job id, ranked from `rank` on. Returns how many were moved of each job.

    One statement for all jobs. Batches are taken in dataset order, so neighbours are claimed together. The
    statement waits for no lock, not even that of a command that changes the job. If a job is paused
    meanwhile, no child claims its queued batches, and `unqueue` takes them back.
    """
    statement = text("""
        -- Not a subquery: Postgres may run that again for each row that it found.
        WITH taken AS MATERIALIZED (
            SELECT given.job_id, next.id, next.seq
            FROM unnest(CAST(:jobs AS bigint[]), CAST(:most AS bigint[])) AS given (job_id, most)
            CROSS JOIN LATERAL (
                SELECT id, seq FROM batches
                WHERE job_id = given.job_id AND state = 'pending'
                  AND (not_before IS NULL OR not_before <= now())
                ORDER BY seq, id LIMIT given.most FOR UPDATE SKIP LOCKED) AS next
        ), ranked AS MATERIALIZED (
            SELECT id, row_number() OVER (PARTITION BY job_id ORDER BY seq, id) AS place FROM taken
        ), admitted AS (
            UPDATE batches b
            SET state = 'queued', queue = concat_ws('.', j.pool, j.engine_key),
                priority = j.priority, rank = :rank + next.place, not_before = NULL
            -- Arrays, which Postgres takes to be short. Of rows it expects a tenth of all that are
            -- pending, and reads the whole table for them.
            FROM unnest(ARRAY(SELECT id FROM ranked), ARRAY(SELECT place FROM ranked))
                 AS next (id, place), jobs j
            WHERE b.id = next.id AND j.id = b.job_id AND j.state = 'running'
            RETURNING b.job_id
        )
        SELECT job_id, count(*) AS batches FROM admitted GROUP BY job_id
    """)
    given = {"jobs": list(most), "most": list(most.values()), "rank": rank}
    return {row.job_id: row.batches for row in connection.execute(statement, given)}


def admit(connection: Connection, job_id: int, limit: int, rank: int) -> int:
    """Admits batches of one job, as `admit_many`; returns how many."""
    return admit_many(connection, {job_id: limit}, rank).get(job_id, 0)


def unqueue(connection: Connection, limit: int) -> int:
    """Makes queued batches of jobs that do not run pending again, at most `limit` of them; returns
    how many. Waits for nobody: a batch that a claim holds at this moment is left to the claim.
    """
    statement = text("""
        -- Not a subquery: Postgres may run that again for each row that it found.
        WITH taken AS MATERIALIZED (
            SELECT next.id
            FROM jobs j CROSS JOIN LATERAL (
                -- With a limit of its own, so that no job's batches are read before the job is.
                SELECT b.id FROM batches b
                WHERE b.queue = concat_ws('.', j.pool, j.engine_key) AND b.job_id = j.id
                  AND b.state = 'queued'
                LIMIT :limit FOR UPDATE SKIP LOCKED) AS next
            WHERE j.closed_at IS NULL AND j.state <> 'running'
              AND (SELECT sum(c.batches_queued) FROM job_counters c WHERE c.job_id = j.id) > 0
            LIMIT :limit
        )
        UPDATE batches SET state = 'pending', rank = NULL
        WHERE id = ANY (ARRAY(SELECT id FROM taken))
    """)
    return int(connection.execute(statement, {"limit": limit}).rowcount)


def started_within(connection: Connection, seconds: float) -> bool:
    """True when Postgres started less than `seconds` ago: no worker could renew before that."""
    return bool(
        connection.scalar(
            text("SELECT pg_postmaster_start_time() > now() - make_interval(secs => :seconds)"),
            {"seconds": seconds},
        )
    )


def next_rank(connection: Connection) -> int:
    """A rank above every earlier one: microseconds of Postgres's clock."""
    return int(
        connection.scalar(text("SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint"))
    )


def fold_counters(connection: Connection, limit: int = 20_000) -> int:
    """Folds counter deltas into one row a job; returns how many rows were folded."""
    statement = text("""
        WITH taken AS (
            DELETE FROM job_counters WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM job_counters WHERE job_id IN (
                    SELECT job_id FROM job_counters GROUP BY job_id HAVING count(*) > 50)
                LIMIT :limit FOR UPDATE SKIP LOCKED))
            RETURNING *
        ), folded AS (
            INSERT INTO job_counters
            SELECT job_id, sum(rows_total), sum(rows_done), sum(rows_failed),
                   sum(batches_pending), sum(batches_queued), sum(batches_leased),
                   sum(batches_done), sum(batches_dead), sum(prompt_tokens),
                   sum(output_tokens), sum(rows_queued), sum(rows_leased)
            FROM taken GROUP BY job_id
        )
        SELECT count(*) FROM taken
    """)
    folded = connection.execute(statement, {"limit": limit})
    return int(folded.scalar_one())
