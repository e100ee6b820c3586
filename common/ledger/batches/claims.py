"""Claim: admitted batches become leased, in rank order; and how many a child may hold of the last."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.batches.records import LONE_LOSSES, Claimant, Lease, descriptor
from nightshift.common.ledger.connection import Connection

CLAIM = text("""
    WITH first AS (
        SELECT b.id, b.losses FROM batches b
        WHERE b.queue = :queue AND b.state = 'queued' AND NOT :idle
          AND b.job_id <> ALL (CAST(:avoided AS bigint[]))
          AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
        ORDER BY b.priority DESC, b.rank, b.id LIMIT 1
    ), elected AS (
        -- The hash chooses one child for each lone batch; the other children go on with others.
        SELECT (SELECT w.id FROM workers w
                WHERE w.pool = :pool AND w.engine_key = :engine_key AND w.state = 'ready'
                  AND w.seen_at > now() - make_interval(secs => :lease_seconds)
                ORDER BY md5(concat_ws(' ', w.id, first.id)) LIMIT 1) AS child
        FROM first WHERE first.losses >= :lone_losses
    ), candidates AS MATERIALIZED (
        SELECT b.id, b.row_count, b.redo_count, b.losses >= :lone_losses AS alone, b.rank,
               b.priority
        FROM batches b
        WHERE b.queue = :queue AND b.state = 'queued' AND (:idle OR b.losses < :lone_losses)
          AND b.job_id <> ALL (CAST(:avoided AS bigint[]))
          -- Not a join, which may read and sort the whole queue for the first few of it.
          AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
          AND NOT EXISTS (SELECT FROM elected WHERE child = :owner)
        ORDER BY b.priority DESC, b.rank, b.id
        LIMIT :max_batches
        FOR UPDATE OF b SKIP LOCKED
    ), ordered AS (
        SELECT id, row_number() OVER best AS place, bool_or(alone) OVER best AS lonely,
               sum(CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END) OVER best
                   - CASE WHEN redo_count > 0 THEN redo_count ELSE row_count END AS before
        FROM candidates WINDOW best AS (ORDER BY priority DESC, rank, id)
    ), claimed AS (
        UPDATE batches b
        SET state = 'leased', attempt = b.attempt + 1, owner = :owner, rank = NULL,
            not_before = NULL, lease_expires_at = now() + make_interval(secs => :lease_seconds)
        FROM ordered o
        WHERE b.id = o.id AND (o.place = 1 OR (o.before < :room_rows AND NOT o.lonely))
        RETURNING b.*, o.place
    ), noted AS (
        INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken)
        SELECT id, attempt, job_id, :owner, :engine, :engine_version, :woken FROM claimed
    ), started AS (
        -- SKIP LOCKED: a claim waits for nobody, and whoever holds the job row (retry, close) may
        -- be waiting for these very batches.
        UPDATE jobs SET started_at = now() WHERE id IN (
            SELECT id FROM jobs WHERE started_at IS NULL AND id IN (SELECT job_id FROM claimed)
            FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT c.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows, f.first_row,
           f.arranged
    FROM claimed c JOIN input_files f USING (job_id, file_index)
    ORDER BY c.place
""")
"""Leases the first batches of a queue that fit, begins their attempts, starts their jobs' clocks.

Where the first batch must run alone, one busy child is elected to take nothing else until it is
idle, and then takes that batch.
"""

FAIR_SHARE = text("""
    WITH sharing AS (
        SELECT id FROM jobs
        WHERE state = 'running' AND pool = :pool AND engine_key = :engine_key
    )
    SELECT CASE
        WHEN NOT EXISTS (SELECT FROM batches b WHERE b.queue = :queue AND b.state = 'queued')
            THEN 0
        -- LATERAL with LIMIT keeps to the index; old statistics may otherwise choose a full scan.
        WHEN EXISTS (SELECT FROM sharing CROSS JOIN LATERAL (
                         SELECT FROM batches b WHERE b.job_id = sharing.id AND b.state = 'pending'
                         ORDER BY b.seq, b.id LIMIT 1) AS next)
            THEN NULL
        ELSE (SELECT ceil(greatest(1, sum(c.rows_total - c.rows_done - c.rows_failed))
                          / greatest(1, (
                  SELECT count(*) FROM workers
                  WHERE pool = :pool AND engine_key = :engine_key AND state = 'ready'
                    AND seen_at > now() - make_interval(secs => :lease_seconds))))
              FROM job_counters c WHERE c.job_id IN (SELECT id FROM sharing))
        END
""")
"""Open rows of a queue by its ready children; null while a batch waits for admission."""


def claim(
    connection: Connection,
    who: Claimant,
    *,
    room_rows: int,
    max_batches: int,
    idle: bool,
    woken: str,
    lease_seconds: float,
    avoided: Sequence[int] = (),
) -> list[Lease]:
    """Leases admitted batches in rank order until `room_rows` is filled; the first always fits.
    Batches of the jobs in `avoided` are left to other children.

    A batch that must run alone is taken only when the child is idle, and then it is the only one.
    When it is its turn, one of the busy children takes nothing else until it is idle.
    """
    found = connection.execute(
        CLAIM,
        {
            **asdict(who),
            "queue": who.queue,
            "room_rows": room_rows,
            "max_batches": max_batches,
            "idle": idle,
            "woken": woken,
            "lease_seconds": lease_seconds,
            "lone_losses": LONE_LOSSES,
            "avoided": list(avoided),
        },
    ).mappings()
    return [_lease(row) for row in found]


def fair_share(connection: Connection, who: Claimant, lease_seconds: float) -> int | None:
    """Rows of the queue that are still open, for each of its living children; at least 1.

    None while more batches wait for admission: then there is enough for all. 0 when no batch is
    admitted, so that there is nothing to share.
    """
    found = connection.scalar(
        FAIR_SHARE, {**asdict(who), "queue": who.queue, "lease_seconds": lease_seconds}
    )
    return None if found is None else int(found)


def _lease(row: RowMapping) -> Lease:
    lone = row["losses"] - LONE_LOSSES
    lease = Lease(
        batch_id=row["id"],
        attempt=row["attempt"],
        owner=row["owner"],
        job_id=row["job_id"],
        seq=row["seq"],
        is_root=row["parent_id"] is None,
        descriptor=descriptor(row),
        alone=row["losses"] >= LONE_LOSSES,
        isolated=lone > 0
        and (row["redo_count"] >> lone == 0 if row["redo"] else row["row_count"] == 1),
        redo=row["redo"],
        kept_part=row["part_name"],
    )
    if lease.redo is None or lone <= 0:
        return lease
    # A retry beside kept answers is not halved in the ledger: it runs fewer rows at a time.
    return lease.narrowed(lease.redo.first(max(1, len(lease.redo) >> lone)))
