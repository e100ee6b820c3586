"""Admission: which pending batches become queued, and what the broker should be told."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger import jobs
from nightshift.common.ledger.connection import Connection, scan_in_order
from nightshift.common.states import JobState

DISPATCH_LOCK = 0x6E69676801
"""Advisory lock of the admission duty: one reaper at a time, for one short transaction."""


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A running job with batches to admit or to announce.

    `pending` counts those that may be admitted now; rows are those queued or leased.
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


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the living children of a queue hold in flight at once."""

    pool: str
    engine_key: str
    children: int
    window_rows: int


def try_duty(connection: Connection, lock: int) -> bool:
    """Takes the lock of a reaper's duty for this transaction; False when another reaper has it."""
    scan_in_order(connection)
    return bool(connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock}))


def open_jobs(connection: Connection) -> list[OpenJob]:
    """Running jobs that have batches to admit or to announce, the highest priority first."""
    found = connection.execute(
        text("""
        SELECT j.id, j.pool, j.engine_key, j.priority, j.max_parallel,
               c.pending - off.batches AS pending,
               c.queued, c.leased, c.rows_queued, c.rows_leased,
               coalesce((j.spec #>> '{batch,rows}')::int, 1) AS batch_rows
        FROM jobs j CROSS JOIN LATERAL (
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
        WHERE j.state = 'running' AND (c.pending > off.batches OR c.queued > 0)
        ORDER BY j.priority DESC, j.id
    """)
    )
    return [OpenJob(**row) for row in found.mappings()]


def capacities(connection: Connection, alive_seconds: float) -> list[Capacity]:
    """In-flight capacity of each queue, from children seen within `alive_seconds`."""
    found = connection.execute(
        text("""
            SELECT pool, engine_key, count(*) AS children, sum(window_rows)::bigint AS window_rows
            FROM workers
            WHERE state = 'ready' AND seen_at > now() - make_interval(secs => :alive)
            GROUP BY pool, engine_key
        """),
        {"alive": alive_seconds},
    )
    return [Capacity(**row) for row in found.mappings()]


def admit(connection: Connection, job_id: int, limit: int, rank: int) -> int:
    """Moves up to `limit` pending batches of a running job to queued, ranked from `rank` on.

    Dataset order, so that neighbours are claimed together. Returns how many were moved.
    """
    if jobs.lock_shared(connection, job_id) is not JobState.RUNNING:
        return 0
    moved = connection.execute(
        text("""
            UPDATE batches b SET state = 'queued', queue = concat_ws('.', j.pool, j.engine_key),
                   priority = j.priority, rank = :rank + mine.place, not_before = NULL
            FROM jobs j, (SELECT id, row_number() OVER (ORDER BY seq, id) AS place
                  FROM (SELECT id, seq FROM batches
                        WHERE job_id = :job_id AND state = 'pending'
                          AND (not_before IS NULL OR not_before <= now())
                        ORDER BY seq, id LIMIT :limit FOR UPDATE SKIP LOCKED) AS next
                 ) AS mine
            WHERE b.id = mine.id AND j.id = :job_id
        """),
        {"job_id": job_id, "limit": limit, "rank": rank},
    )
    return int(moved.rowcount)


def started_within(connection: Connection, seconds: float) -> bool:
    """True when Postgres itself started less than `seconds` ago: nobody could renew before."""
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
    folded = connection.execute(
        text("""
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
        """),
        {"limit": limit},
    )
    return int(folded.scalar_one())


def finishable(connection: Connection, reaper: str, hold_seconds: float) -> Sequence[int]:
    """Jobs whose batches are all over and whose files want finishing, taken for `hold_seconds`.

    Taking is a courtesy between reapers, not a fence: finishing twice is harmless. A cancelled
    or failed job is over once nobody holds a lease of it.
    """
    found = connection.execute(
        text("""
            UPDATE jobs SET finisher = :reaper,
                   finisher_until = now() + make_interval(secs => :hold)
            WHERE id IN (
                SELECT j.id FROM jobs j CROSS JOIN LATERAL (
                    SELECT coalesce(sum(batches_leased), 0) AS leased,
                           coalesce(sum(batches_pending + batches_queued), 0) AS waiting
                    FROM job_counters WHERE job_id = j.id) AS c
                WHERE j.closed_at IS NULL
                  AND (j.finisher_until IS NULL OR j.finisher_until < now()
                       OR j.finisher = :reaper)
                  AND c.leased = 0 AND (j.state IN ('cancelled', 'failed') OR c.waiting = 0)
                FOR UPDATE OF j SKIP LOCKED)
            RETURNING id
        """),
        {"reaper": reaper, "hold": hold_seconds},
    )
    return [row.id for row in found]


@dataclass(frozen=True, slots=True)
class Openness:
    """What is not over in a job; the job row is locked for it."""

    state: JobState
    leased: int
    waiting: int
    dead: int
    unburied: int

    @property
    def may_commit(self) -> bool:
        """True while an attempt that has begun may still name its part."""
        return bool(self.leased or (self.waiting and not self.state.over))

    @property
    def end(self) -> JobState | None:
        """The state in which the job ends as it stands; None while it cannot."""
        if self.may_commit or self.unburied:
            return None
        if self.state.over:
            return self.state
        return JobState.FAILED if self.dead else JobState.COMPLETED


def openness(connection: Connection, job_id: int) -> Openness:
    """Locks the job and says what is not over in it."""
    state = jobs.lock(connection, job_id)
    left = connection.execute(
        text("""
            -- Each by the index of its state: one scan for all would read every batch that is done.
            SELECT (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'pending')
                   + (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'queued')
                   AS waiting,
                   (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'leased') AS leased,
                   count(*) AS dead,
                   count(*) FILTER (WHERE part_name IS NULL OR redo IS NOT NULL) AS unburied
            FROM batches WHERE job_id = :id AND state = 'dead'
        """),
        {"id": job_id},
    ).one()
    return Openness(state, left.leased, left.waiting, left.dead, left.unburied)


def close(connection: Connection, job_id: int) -> JobState | None:
    """Closes a job whose files are finished; None when it has open batches again (retry)."""
    left = openness(connection, job_id)
    if left.end is not None:
        why = _why_dead(connection, job_id, left.dead) if left.dead else None
        _close(connection, job_id, left.end, why)
    return left.end


def _why_dead(connection: Connection, job_id: int, dead: int) -> str:
    """The error that most dead batches share."""
    worst = connection.execute(
        text("""
            SELECT last_error, count(*) AS batches FROM batches
            WHERE job_id = :id AND state = 'dead' AND last_error IS NOT NULL
            GROUP BY last_error ORDER BY count(*) DESC, min(seq) LIMIT 1
        """),
        {"id": job_id},
    ).one_or_none()
    said = "1 batch is dead" if dead == 1 else f"{dead} batches are dead"
    if worst is None:
        return said
    some = "" if worst.batches == dead else f", {worst.batches} of them because of one error"
    return f"{said}{some}: {worst.last_error}"


def abandon(connection: Connection, job_id: int, reason: str) -> bool:
    """Closes a job whose files can never be finished: failed, unless it was cancelled. False when
    a retry has opened it again: then its files are not final.
    """
    left = openness(connection, job_id)
    if left.may_commit:
        return False
    _close(connection, job_id, left.state if left.state.over else JobState.FAILED, reason)
    return True


def _close(connection: Connection, job_id: int, end: JobState, reason: str | None) -> None:
    connection.execute(
        text("""
            UPDATE jobs SET state = :state, closed_at = now(), finisher = NULL,
                   finisher_until = NULL, finished_at = coalesce(finished_at, now()),
                   reason = CASE WHEN state IN ('failed', 'cancelled') THEN reason
                                 ELSE :reason END
            WHERE id = :id AND closed_at IS NULL
        """),
        {"id": job_id, "state": end, "reason": reason},
    )
