"""Claim: admitted batches become leased, in rank order; and how many a child may hold of the last."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import RowMapping, text

from nightshift.common.ledger.batches.records import LONE_LOSSES, Claimant, Lease, descriptor
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.statements import statement

CLAIM = statement(__file__, "claim")

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
    admitted: then there is nothing to share.
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
