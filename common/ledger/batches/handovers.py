"""Handover: rows that no engine has begun go from a busy child to idle ones of its queue."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches import splits
from nightshift.common.ledger.batches.records import NO_ROWS, Claimant, Lease
from nightshift.common.ledger.connection import Connection

HANDED_OVER = "rows that had not begun went to children without work"
"""Why the attempt of a batch ended that was replaced by its begun rows and the others."""

SIBLINGS = text("""
    WITH open_jobs AS (
        SELECT j.id, j.max_parallel, coalesce(c.taken, 0) AS taken
        FROM jobs j LEFT JOIN LATERAL (
            SELECT sum(batches_queued + batches_leased)::bigint AS taken
            FROM job_counters WHERE job_id = j.id) AS c ON true
        WHERE j.pool = :pool AND j.engine_key = :engine_key AND j.state = 'running'
    ), children AS (
        SELECT EXISTS (SELECT FROM batches b WHERE b.owner = w.id AND b.state = 'leased') AS busy
        FROM workers w
        WHERE w.pool = :pool AND w.engine_key = :engine_key AND w.state = 'ready'
          AND w.id <> :owner AND w.seen_at > now() - make_interval(secs => :lease_seconds)
          AND (w.supervisor, w.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)
    )
    SELECT (SELECT count(*) FROM children WHERE NOT busy) AS idle,
           (SELECT count(*) FROM children WHERE busy) AS busy,
           (SELECT count(*) FROM open_jobs j CROSS JOIN LATERAL (
                SELECT FROM batches b WHERE b.job_id = j.id AND b.state = 'pending'
                  AND (b.not_before IS NULL OR b.not_before <= now())
                ORDER BY b.seq, b.id LIMIT :most) AS next)
         + (SELECT count(*) FROM (
                SELECT FROM batches b WHERE b.queue = :queue AND b.state = 'queued'
                  AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
                LIMIT :most) AS next) AS waiting,
           (SELECT coalesce(jsonb_object_agg(id, max_parallel - taken), '{}') FROM open_jobs) AS room
""")
"""The other ready children of a queue without those of cordoned slots, the batches that wait for one, and the room of each job."""

MOST_COUNTED = 1_000
"""More waiting batches of a job are not counted: no pool has so many idle children."""

INSERT_LEASED = text("""
    INSERT INTO batches (job_id, seq, parent_id, file_index, rows, row_count, locator_row,
                         byte_offset, byte_length, failures, losses, attempt, owner, state,
                         lease_expires_at)
    SELECT job_id, seq, id, file_index, :rows, :row_count, locator_row, byte_offset, byte_length,
           failures, losses, attempt + 1, :owner, 'leased',
           now() + make_interval(secs => :lease_seconds)
    FROM batches WHERE id = :id
    RETURNING id
""")
"""A child of a split parent that its owner goes on with, under a lease of its own."""

BEGIN_ATTEMPT = text("""
    INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken)
    SELECT :child_id, attempt + 1, job_id, worker_id, engine, engine_version, woken
    FROM attempts WHERE batch_id = :id AND attempt = :attempt
""")
"""The lease of that child, by the engine of the attempt before."""

END_ATTEMPT = text("""
    UPDATE attempts SET ended_at = now(), outcome = 'released', error = :error, unsent = :unsent
    WHERE batch_id = :id AND attempt = :attempt AND ended_at IS NULL
""")
"""Ends the attempt of the parent. Not as `split`: the parent has no part, and a late commit of it
must be refused."""

EARLIER = text("""
    SELECT id FROM batches
    WHERE job_id = :job_id AND seq = :seq AND parent_id = :id AND owner = :owner
      AND attempt = :attempt + 1
""")
"""The child that the owner goes on with, where an earlier COMMIT of the handover arrived."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """The other ready children of a queue: those that hold a batch, and those that hold none.

    `waiting` counts the batches that one of them may have soon. `room` says by job id how many more
    batches a running job may have queued or leased; None where there is no limit. A job that does
    not run is missing.
    """

    idle: int
    busy: int
    waiting: int
    room: dict[int, int | None]


def siblings(connection: Connection, who: Claimant, lease_seconds: float) -> Siblings:
    """What a busy child must know before it hands rows over."""
    row = connection.execute(
        SIBLINGS,
        {
            **asdict(who),
            "queue": who.queue,
            "lease_seconds": lease_seconds,
            "most": MOST_COUNTED,
        },
    ).one()
    room = {int(job_id): room for job_id, room in row.room.items()}
    return Siblings(row.idle, row.busy, row.waiting, room)


def hand_over(
    connection: Connection,
    lease: Lease,
    pieces: Sequence[RowRanges],
    lease_seconds: float,
) -> Lease | None:
    """Replaces a leased batch by one of each piece, pending, and one of the other rows, which the
    owner holds on; returns its lease, None where no rows are left. Charges nothing.

    May be called again after a COMMIT whose answer was lost. LeaseLost when the fence does not match
    or the job is over.
    """
    kept, unsent = lease.descriptor.rows, NO_ROWS
    for piece in pieces:
        kept, unsent = kept.minus(piece), unsent.union(piece)
    if connection.scalar(splits.SPLIT_HELD, lease.fence) is None:
        given = {**lease.fence, "job_id": lease.job_id, "seq": lease.seq}
        child_id = connection.scalar(EARLIER, given)
        if child_id is None:
            raise lease.lost
        return _lease(lease, child_id, kept)
    connection.execute(END_ATTEMPT, {**lease.fence, "error": HANDED_OVER, "unsent": unsent})
    for piece in pieces:
        splits.insert_pending(connection, lease.batch_id, piece)
    if not len(kept):
        return None
    facts = {"rows": kept, "row_count": len(kept), "lease_seconds": lease_seconds}
    child_id = connection.execute(INSERT_LEASED, {**lease.fence, **facts}).scalar_one()
    connection.execute(BEGIN_ATTEMPT, {**lease.fence, "child_id": child_id})
    return _lease(lease, child_id, kept)


def _lease(lease: Lease, child_id: int, kept: RowRanges) -> Lease:
    return replace(
        lease,
        batch_id=child_id,
        attempt=lease.attempt + 1,
        descriptor=replace(lease.descriptor, rows=kept),
    )
