"""A batch in the hands of an owner: claimed, renewed, given back, lost, failed.

Every statement about a held batch is fenced by its id, attempt and owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, INTEGER

from nightshift.common.errors import LeaseLost
from nightshift.common.ledger.batches.commits import end_attempt, halve
from nightshift.common.ledger.batches.multirange import from_multirange
from nightshift.common.ledger.batches.records import LONE_LOSSES, Claimant, Lease, descriptor
from nightshift.common.ledger.connection import Connection, scan_in_order
from nightshift.common.states import Outcome


def claim(
    connection: Connection,
    who: Claimant,
    *,
    room_rows: int,
    max_batches: int,
    idle: bool,
    woken: str,
    lease_seconds: float,
) -> list[Lease]:
    """Leases admitted batches in rank order until `room_rows` is filled; the first always fits.

    A batch that must run alone is taken only when the child is idle, and then it is the only one.
    When it is its turn, one of the busy children takes nothing else until it is idle.
    """
    found = connection.execute(
        CLAIM,
        {
            "owner": who.owner,
            "queue": f"{who.pool}.{who.engine_key}",
            "pool": who.pool,
            "engine_key": who.engine_key,
            "engine": who.engine,
            "engine_version": who.engine_version,
            "room_rows": room_rows,
            "max_batches": max_batches,
            "idle": idle,
            "woken": woken,
            "lease_seconds": lease_seconds,
            "lone_losses": LONE_LOSSES,
        },
    ).mappings()
    return [_lease(row) for row in found]


CLAIM = text("""
    WITH first AS (
        SELECT b.id, b.losses FROM batches b
        WHERE b.queue = :queue AND b.state = 'queued' AND NOT :idle
        ORDER BY b.priority DESC, b.rank, b.id LIMIT 1
    ), elected AS (
        -- The hash gives each lone batch a child of its own choice; the others work on.
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
        -- SKIP LOCKED: whoever holds the job row may be waiting for these very batches.
        UPDATE jobs SET started_at = now() WHERE id IN (
            SELECT id FROM jobs WHERE started_at IS NULL AND id IN (SELECT job_id FROM claimed)
            FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT c.*, f.uri, f.format, f.size, f.fingerprint, f.row_count AS file_rows, f.first_row
    FROM claimed c JOIN input_files f USING (job_id, file_index)
    ORDER BY c.place
""")


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat brought back: leases that still hold, and those of jobs that are over."""

    held: frozenset[tuple[int, int]]
    unwanted: frozenset[tuple[int, int]]


def renew(
    connection: Connection, owner: str, leases: Sequence[tuple[int, int]], lease_seconds: float
) -> Renewal:
    """Renews (batch id, attempt) pairs in one statement; what does not come back is lost."""
    scan_in_order(connection)
    found = connection.execute(
        RENEW,
        {
            "owner": owner,
            "ids": [batch_id for batch_id, _ in leases],
            "attempts": [attempt for _, attempt in leases],
            "lease_seconds": lease_seconds,
        },
    ).all()
    return Renewal(
        held=frozenset((row.id, row.attempt) for row in found),
        unwanted=frozenset((row.id, row.attempt) for row in found if row.job_over),
    )


RENEW = text("""
    UPDATE batches b SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
    FROM (SELECT b.id, j.state NOT IN ('running', 'paused') AS job_over
          FROM unnest(:ids, :attempts) AS mine (id, attempt)
          JOIN batches b ON b.id = mine.id AND b.attempt = mine.attempt
          JOIN jobs j ON j.id = b.job_id
          WHERE b.owner = :owner AND b.state = 'leased'
          ORDER BY b.id FOR UPDATE OF b) AS mine
    WHERE b.id = mine.id
    RETURNING b.id, b.attempt, mine.job_over
""").bindparams(bindparam("ids", type_=ARRAY(BIGINT)), bindparam("attempts", type_=ARRAY(INTEGER)))


def release(
    connection: Connection,
    leases: Sequence[Lease],
    *,
    error: str | None = None,
    pause_seconds: float = 0,
) -> None:
    """Gives batches back untouched: pending, nothing charged. Lost ones are passed over.

    After an outage (`error` names it) nobody claims them again for `pause_seconds`.
    """
    connection.execute(
        RELEASE,
        {
            "ids": [lease.batch_id for lease in leases],
            "attempts": [lease.attempt for lease in leases],
            "owners": [lease.owner for lease in leases],
            "error": error,
            "pause_seconds": pause_seconds,
        },
    )


FREED = """
    WITH freed AS (
        UPDATE batches b SET state = 'pending', lease_expires_at = NULL {set}
        FROM (SELECT b.id FROM batches b {where} {lock}) AS mine
        WHERE b.id = mine.id
        RETURNING b.id, b.attempt, b.job_id, b.row_count, b.losses
    ), ended AS (
        UPDATE attempts a SET ended_at = now(), outcome = {outcome}, error = {error}
        FROM freed WHERE a.batch_id = freed.id AND a.attempt = freed.attempt
          AND a.ended_at IS NULL
    )
    SELECT id, row_count, losses FROM freed
"""
RELEASE = text(
    FREED.format(
        set=""", last_error = coalesce(CAST(:error AS text), b.last_error),
               not_before = now() + make_interval(secs => :pause_seconds)""",
        where="""JOIN unnest(:ids, :attempts, CAST(:owners AS text[])) AS mine (id, attempt, owner)
             ON b.id = mine.id AND b.attempt = mine.attempt AND b.owner = mine.owner
             WHERE b.state = 'leased'""",
        lock="ORDER BY b.id FOR UPDATE OF b",
        outcome="'released'",
        error="CAST(:error AS text)",
    )
).bindparams(bindparam("ids", type_=ARRAY(BIGINT)), bindparam("attempts", type_=ARRAY(INTEGER)))
RELEASE_OWNER = text(
    FREED.format(
        set="",
        where="WHERE b.state = 'leased' AND b.owner = :owner AND NOT b.id = ANY (:kept)",
        lock="ORDER BY b.id FOR UPDATE",
        outcome="'released'",
        error="NULL",
    )
).bindparams(bindparam("kept", type_=ARRAY(BIGINT)))
LOSE_OWNER = text(
    FREED.format(
        set=", losses = b.losses + 1, last_error = CAST(:error AS text)",
        where="WHERE b.state = 'leased' AND b.owner = :owner",
        lock="ORDER BY b.id FOR UPDATE",
        outcome="'lost'",
        error="CAST(:error AS text)",
    )
)
REAP = text(
    FREED.format(
        set=", losses = b.losses + 1, last_error = CAST(:error AS text)",
        where="WHERE b.state = 'leased' AND b.lease_expires_at < now()",
        # It waits for nobody, and so needs no order.
        lock="LIMIT :limit FOR UPDATE SKIP LOCKED",
        outcome="'lost'",
        error="CAST(:error AS text)",
    )
)


def release_owner(connection: Connection, owner: str, kept: Sequence[int] = ()) -> int:
    """Gives back the leases of one child without a charge; returns how many.

    `kept` are batch ids in its hands: without those, what is left are claims whose COMMIT answer
    was lost, which nobody would renew.
    """
    return len(connection.execute(RELEASE_OWNER, {"owner": owner, "kept": list(kept)}).all())


def lose_owner(connection: Connection, owner: str, error: str) -> int:
    """The engine of a child died: every batch it held is a suspect, `losses + 1`."""
    return _lost(connection, connection.execute(LOSE_OWNER, {"owner": owner, "error": error}).all())


def reap(connection: Connection, limit: int = 500) -> int:
    """Takes back leases that ran out by Postgres's clock, `losses + 1`; returns how many."""
    scan_in_order(connection)
    error = "the lease ran out: its worker is gone, frozen or cut off"
    return _lost(connection, connection.execute(REAP, {"limit": limit, "error": error}).all())


def _lost(connection: Connection, lost: Sequence[Any]) -> int:
    """What was lost while it ran alone is halved, so that the killer row is found."""
    for batch in lost:
        if batch.losses > LONE_LOSSES and batch.row_count > 1:
            halve(connection, batch.id)
    return len(lost)


def fail(
    connection: Connection,
    lease: Lease,
    error: str,
    *,
    permanent: bool,
    max_attempts: int,
    backoff_seconds: float,
) -> None:
    """Charges a failure: pending with backoff (doubling), or dead when permanent or out of
    attempts.

    Raises LeaseLost when the fence does not match.
    """
    held = connection.scalar(
        FAIL,
        {
            **lease.fence,
            "error": error,
            "permanent": permanent,
            "max_attempts": max_attempts,
            "backoff_seconds": backoff_seconds,
        },
    )
    if held is None:
        raise LeaseLost(f"batch {lease.batch_id} attempt {lease.attempt} belongs to somebody else")
    end_attempt(connection, lease, Outcome.FAILED, 0, None, error)


FAIL = text("""
    UPDATE batches
    SET failures = failures + 1, last_error = :error, lease_expires_at = NULL,
        state = CASE WHEN :permanent OR failures + 1 >= :max_attempts
                     THEN 'dead' ELSE 'pending' END,
        not_before = CASE WHEN :permanent OR failures + 1 >= :max_attempts THEN NULL
                          ELSE now() + make_interval(
                              secs => :backoff_seconds * power(2, least(failures, 6))) END
    WHERE id = :id AND attempt = :attempt AND owner = :owner AND state = 'leased'
    RETURNING id
""")


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
        doomed=lone > 0
        and (row["redo_count"] >> lone == 0 if row["redo"] else row["row_count"] == 1),
        redo=None if row["redo"] is None else from_multirange(row["redo"]),
        kept_part=row["part_name"],
    )
    if lease.redo is None or lone <= 0:
        return lease
    # A retry beside kept answers is not halved in the ledger: it runs fewer rows at a time.
    return lease.narrowed(lease.redo.first(max(1, len(lease.redo) >> lone)))
