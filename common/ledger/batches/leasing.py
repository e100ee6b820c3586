"""A lease in the hands of its owner: renewed, released, lost, and taken when its job is over.

Every statement about a held batch is fenced by its id, attempt and owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches.records import LONE_LOSSES, NO_ROWS, Lease
from nightshift.common.ledger.batches.splits import halve
from nightshift.common.ledger.connection import Connection, scan_in_order
from nightshift.common.ledger.jobs import messages
from nightshift.common.states import Outcome

RENEW = text("""
    UPDATE batches b SET lease_expires_at = now() + make_interval(secs => :lease_seconds)
    FROM (SELECT b.id, j.state NOT IN ('running', 'paused') AS job_over,
                 j.finished_at < now() - make_interval(secs => :lease_seconds) AS is_late
          FROM unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[])) AS given (id, attempt)
          JOIN batches b ON b.id = given.id AND b.attempt = given.attempt
          JOIN jobs j ON j.id = b.job_id
          WHERE b.owner = :owner AND b.state = 'leased'
          ORDER BY b.id FOR UPDATE OF b) AS held
    WHERE b.id = held.id
    RETURNING b.id, b.attempt, held.job_over, held.is_late
""")
"""New expiry for the leases that a process still holds."""

HELD = text("""
    SELECT b.id
    FROM unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:owners AS text[]))
         AS given (id, attempt, owner)
    JOIN batches b ON b.id = given.id AND b.attempt = given.attempt AND b.owner = given.owner
    WHERE b.state = 'leased'
    ORDER BY b.id FOR UPDATE OF b
""")
"""Locks the batches of the given leases that still hold."""

HELD_BATCH = text("""
    SELECT job_id, state, owner, attempt FROM batches WHERE id = :id FOR UPDATE
""")
"""Locks one batch, whoever holds it."""

HELD_BY_OWNER = text("""
    SELECT id FROM batches
    WHERE state = 'leased' AND owner = :owner AND NOT id = ANY (CAST(:kept AS bigint[]))
    ORDER BY id FOR UPDATE
""")
"""Locks every batch that one child has leased, without those in `kept`."""

EXPIRED = text("""
    SELECT id FROM batches WHERE state = 'leased' AND lease_expires_at < now()
    LIMIT :limit FOR UPDATE SKIP LOCKED
""")
"""Locks batches whose lease ran out; waits for nobody, and so needs no order."""

FREE = text("""
    WITH freed AS (
        UPDATE batches
        SET state = 'pending', lease_expires_at = NULL, losses = losses + :charged_losses,
            last_error = coalesce(CAST(:error AS text), last_error),
            not_before = CASE WHEN :pause_seconds > 0
                              THEN now() + make_interval(secs => :pause_seconds) END
        WHERE id = ANY (CAST(:ids AS bigint[]))
        RETURNING id, attempt, row_count, losses
    ), ended AS (
        UPDATE attempts a SET ended_at = now(), outcome = :outcome, error = CAST(:error AS text)
        FROM freed WHERE a.batch_id = freed.id AND a.attempt = freed.attempt
          AND a.ended_at IS NULL
    )
    SELECT id, row_count, losses FROM freed
""")
"""Makes locked batches pending again and ends their attempts."""


NOTE_UNSENT = text("""
    UPDATE attempts SET unsent = :unsent
    WHERE batch_id = :id AND attempt = :attempt AND worker_id = :owner
""")
"""Rows of which an attempt sent nothing."""

TAKE_OWNERS = text("""
    WITH owned AS MATERIALIZED (
        SELECT id FROM batches
        WHERE job_id = :job_id AND state IN ('pending', 'queued') AND owner IS NOT NULL
        ORDER BY id LIMIT :limit FOR UPDATE
    )
    UPDATE batches b SET owner = NULL, state = 'pending', rank = NULL
    FROM owned
    WHERE b.id = owned.id AND b.state IN ('pending', 'queued') AND b.owner IS NOT NULL
""")
"""Takes waiting batches from their last owners, in id order."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat brought back: leases that still hold. Of those, `ended` are of jobs that are over and may
    commit the rows that are finished; `unwanted` are of jobs that have been over for longer than a lease.
    """

    held: frozenset[tuple[int, int]]
    ended: frozenset[tuple[int, int]]
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
        ended=frozenset((row.id, row.attempt) for row in found if row.job_over and not row.is_late),
        unwanted=frozenset((row.id, row.attempt) for row in found if row.job_over and row.is_late),
    )


def release(
    connection: Connection,
    leases: Sequence[Lease],
    *,
    error: str | BaseException | None = None,
    pause_seconds: float = 0,
    unsent: RowRanges = NO_ROWS,
) -> None:
    """Gives batches of one job back untouched: pending, nothing charged. Lost ones are passed over.

    After an outage (`error` names it) nobody claims them again for `pause_seconds`. `unsent` are the rows of
    them whose requests were never sent to the engine.
    """
    held = _held(connection, leases)  # batches are locked before their attempts, as everywhere
    if len(unsent):
        for lease in leases:
            connection.execute(NOTE_UNSENT, {**lease.fence, "unsent": unsent})
    kept = None if error is None else messages.stored(connection, leases[0].job_id, error)
    _free(connection, held, Outcome.RELEASED, kept, pause_seconds)


def lose(connection: Connection, lease: Lease, error: str | BaseException) -> None:
    """An engine ended over this batch alone, which is a suspect: `losses + 1`."""
    kept = messages.stored(connection, lease.job_id, error)
    _lose(connection, _held(connection, [lease]), kept)


def release_batch(connection: Connection, batch_id: int, why: str) -> Any | None:
    """Takes one batch from its owner without a charge, whoever that is: for a person. The history of the
    job says `why`. Returns the job, state, owner and attempt that the batch had; None for no batch.

    As after an expired lease the owner may commit late until somebody else claims the batch.
    """
    found = connection.execute(HELD_BATCH, {"id": batch_id}).one_or_none()
    if found is not None and found.state == "leased":
        _free(connection, [batch_id], Outcome.RELEASED, why)
    return found


def pieces(connection: Connection, job_id: int, seq: int) -> Sequence[int]:
    """The ids of the batch `seq` of a job; several where the batch was split."""
    statement = text("SELECT id FROM batches WHERE job_id = :job_id AND seq = :seq ORDER BY id")
    return connection.scalars(statement, {"job_id": job_id, "seq": seq}).all()


def released_before(connection: Connection, lease: Lease, error: str | BaseException) -> int:
    """How many earlier leases of the batch were released with the same error, within a day."""
    statement = text("""
        SELECT count(*) FROM attempts
        WHERE batch_id = :id AND attempt < :attempt AND outcome = 'released' AND error = :error
          AND ended_at > now() - interval '1 day'
    """)
    kept = messages.stored(connection, lease.job_id, error)
    return int(connection.scalar(statement, {**lease.fence, "error": kept}) or 0)


def release_owner(connection: Connection, owner: str, kept: Sequence[int] = ()) -> int:
    """Gives back the leases of one child without a charge; returns how many.

    `kept` are the batch ids that the child knows. A lease that the child does not know comes from
    a claim whose COMMIT answer was lost, and would never be renewed.
    """
    held = connection.scalars(HELD_BY_OWNER, {"owner": owner, "kept": list(kept)}).all()
    _free(connection, held, Outcome.RELEASED, None)
    return len(held)


def lose_owner(connection: Connection, owner: str, error: str) -> int:
    """The engine of a child died: every batch it held is a suspect, `losses + 1`."""
    held = connection.scalars(HELD_BY_OWNER, {"owner": owner, "kept": []}).all()
    return _lose(connection, held, error)


def take_owners(connection: Connection, job_id: int, limit: int | None = None) -> int:
    """Takes the waiting batches of a job from their last owners, at most `limit` of them; returns
    how many. For a job that is over, or that is opened again.

    The batches are pending afterwards. A late commit of such an owner finds another owner and is
    refused. A late commit that holds its batch already is waited for, and its batch is done.
    """
    return connection.execute(TAKE_OWNERS, {"job_id": job_id, "limit": limit}).rowcount


def reap(connection: Connection, limit: int = 1_000) -> int:
    """Takes back at most `limit` leases that ran out by Postgres's clock, `losses + 1`; returns how many."""
    scan_in_order(connection)
    expired = connection.scalars(EXPIRED, {"limit": limit}).all()
    return _lose(connection, expired, "the lease ran out: its worker is gone, frozen or cut off")


def _held(connection: Connection, leases: Sequence[Lease]) -> Sequence[int]:
    """Locks the batches of those leases that still hold, and returns their ids."""
    given = {
        "ids": [lease.batch_id for lease in leases],
        "attempts": [lease.attempt for lease in leases],
        "owners": [lease.owner for lease in leases],
    }
    return connection.scalars(HELD, given).all()


def _lose(connection: Connection, ids: Sequence[int], error: str) -> int:
    """Charges a loss; a batch that was lost while it ran alone is halved, to find the killer row."""
    for batch in _free(connection, ids, Outcome.LOST, error):
        if batch.losses > LONE_LOSSES and batch.row_count > 1:
            halve(connection, batch.id)
    return len(ids)


def _free(
    connection: Connection,
    ids: Sequence[int],
    outcome: Outcome,
    error: str | None,
    pause_seconds: float = 0,
) -> Sequence[Any]:
    """Makes batches that this transaction has locked pending; returns them with their losses."""
    if not ids:
        return []
    return connection.execute(
        FREE,
        {
            "ids": list(ids),
            "charged_losses": int(outcome is Outcome.LOST),
            "outcome": outcome,
            "error": error,
            "pause_seconds": pause_seconds,
        },
    ).all()
