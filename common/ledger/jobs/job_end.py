"""The end of a job: which jobs have all batches over, and how a job is closed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import messages, tenant_costs
from nightshift.common.ledger.jobs.failure_limits import REFUSED_ALIKE, refused_alike
from nightshift.common.ledger.jobs.jobs import lock, pause_refused
from nightshift.common.states import JobState
from nightshift.common.text import counted_batches, plural

FINISHABLE = text(f"""
    SELECT j.id FROM jobs j CROSS JOIN LATERAL (
        SELECT coalesce(sum(batches_leased), 0) AS leased,
               coalesce(sum(batches_pending + batches_queued), 0) AS waiting
        FROM job_counters WHERE job_id = j.id) AS c
    WHERE j.closed_at IS NULL AND {holds.free(Kind.FINISH, "j.id")}
      AND CASE WHEN j.state = 'paused' THEN ({REFUSED_ALIKE}) IS NULL ELSE true END
      AND c.leased = 0 AND (j.state IN ('cancelled', 'failed') OR c.waiting = 0
                            AND NOT EXISTS (SELECT FROM job_watches w WHERE w.job_id = j.id))
    ORDER BY {holds.tried_at(Kind.FINISH, "j.id")} NULLS FIRST, j.id LIMIT 1
    FOR UPDATE OF j SKIP LOCKED
""")
"""The job whose batches are all over and whose files want finishing, first what nobody has tried."""


def take_finishable(connection: Connection, reaper: str) -> Hold | None:
    """Takes a job whose batches are all over and whose files want finishing; None where there is none.

    A cancelled or failed job is over once nobody holds a lease of it. A job whose input is watched
    waits for files, one that is paused since all its rows were refused alike for a resume.
    """
    found = connection.scalar(FINISHABLE)
    return None if found is None else holds.take(connection, Kind.FINISH, found, reaper)


def take(connection: Connection, job_id: int, who: str) -> Hold:
    """Takes the finish of this job, even from another process that has it."""
    lock(connection, job_id)
    hold = holds.take(connection, Kind.FINISH, job_id, who, over=True)
    assert hold is not None
    return hold


def hold_refused(connection: Connection, job_id: int) -> bool:
    """Whether only a person can end a job that has no batch left, since all its rows were refused in the same
    words. Such a job is paused now, if no worker has paused it before.
    """
    left = open_work(connection, job_id)
    if left.state is JobState.RUNNING:
        return not left.dead and pause_refused(connection, job_id)
    return refused_alike(connection, job_id, JobState.PAUSED) is not None


def take_owners(connection: Connection, job_id: int, limit: int) -> int:
    """Takes the waiting batches of a job that is over from their last owners, at most `limit` of
    them; returns how many. None of a job that a retry has opened again.
    """
    if not lock(connection, job_id).over:
        return 0
    return leasing.take_owners(connection, job_id, limit)


@dataclass(frozen=True, slots=True)
class OpenWork:
    """What is not over in a job: its batches by state, waiting ones that still have their last
    owner, and dead ones without an error part.
    """

    state: JobState
    leased: int
    waiting: int
    owned: int
    dead: int
    without_part: int

    @property
    def may_commit(self) -> bool:
        """True while an attempt that has begun, or is about to begin, may still name its part.

        In a job that is over nothing begins any more. Yet a COMMIT that began before the job was
        over may still be under way, for a lease or for a batch that still has its last owner.
        """
        return bool(self.leased or self.owned or (self.waiting and not self.state.over))

    @property
    def end(self) -> JobState | None:
        """The state in which the job ends with this work; None while it cannot end."""
        if self.may_commit or self.without_part:
            return None
        if self.state.over:
            return self.state
        return JobState.FAILED if self.dead else JobState.COMPLETED


def open_work(connection: Connection, job_id: int) -> OpenWork:
    """Locks the job and counts what is not over in it."""
    state = lock(connection, job_id)
    statement = text("""
        -- Each by the index of its state: one scan for all would read every batch that is done.
        SELECT (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'pending')
               + (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'queued')
               AS waiting,
               (SELECT count(*) FROM batches
                WHERE job_id = :id AND state IN ('pending', 'queued') AND owner IS NOT NULL)
               AS owned,
               (SELECT count(*) FROM batches WHERE job_id = :id AND state = 'leased') AS leased,
               count(*) AS dead,
               count(*) FILTER (WHERE part_name IS NULL OR redo IS NOT NULL) AS without_part
        FROM batches WHERE job_id = :id AND state = 'dead'
    """)
    return OpenWork(state, **connection.execute(statement, {"id": job_id}).mappings().one())


def close(connection: Connection, hold: Hold) -> JobState | None:
    """Closes a job whose files are finished; None when it has open batches again (retry), or when somebody
    else finishes it by now.
    """
    job_id = int(hold.subject)
    left = open_work(connection, job_id)
    if left.end is None:
        return None
    reason = _why_dead(connection, job_id, left.dead) if left.dead else None
    return left.end if _close(connection, hold, left.end, reason) else None


def note_work(connection: Connection, job_id: int) -> None:
    """Writes how long at least one batch of the job was leased, up to the commit of each.

    One scan of the attempts of a job that ends: it may take seconds for a million batches, and is ended
    by the time limit of a statement for very many. Nothing but the rate of the job needs it.
    """
    statement = text("""
        UPDATE jobs SET worked_seconds = (
            SELECT extract(epoch FROM sum(ended_at - greatest(claimed_at, reached)))
            FROM (SELECT claimed_at, ended_at,
                         max(ended_at) OVER (ORDER BY claimed_at ROWS BETWEEN UNBOUNDED PRECEDING
                                             AND 1 PRECEDING) AS reached
                  FROM attempts WHERE job_id = :id AND outcome IN ('done', 'split')) AS ordered
            WHERE reached IS NULL OR ended_at > reached)
        WHERE id = :id AND closed_at IS NULL
    """)
    connection.execute(statement, {"id": job_id})


def note_ids(connection: Connection, job_id: int, counted: Mapping[str, Any] | None) -> None:
    """Writes what was counted of the ids of a job that ends."""
    statement = text("""
        UPDATE jobs SET id_counts = CAST(:counted AS jsonb) WHERE id = :id AND closed_at IS NULL
    """)
    written = None if counted is None else json.dumps(counted)
    connection.execute(statement, {"id": job_id, "counted": written})


def abandon(connection: Connection, hold: Hold, reason: str | BaseException) -> bool:
    """Closes a job whose files can never be finished: failed, unless it was cancelled. False when
    a retry has opened it again, since its files are not final then, or when somebody else finishes it.
    """
    left = open_work(connection, int(hold.subject))
    if left.may_commit:
        return False
    end = left.state if left.state.over else JobState.FAILED
    return _close(connection, hold, end, reason)


def _why_dead(connection: Connection, job_id: int, dead: int) -> str:
    """A sentence with the error that most dead batches share."""
    statement = text("""
        SELECT last_error, count(*) AS batches FROM batches
        WHERE job_id = :id AND state = 'dead' AND last_error IS NOT NULL
        GROUP BY last_error ORDER BY count(*) DESC, min(seq) LIMIT 1
    """)
    worst = connection.execute(statement, {"id": job_id}).one_or_none()
    total = f"{counted_batches(dead)} {plural(dead, 'is', 'are')} dead"
    if worst is None:
        return total
    some = "" if worst.batches == dead else f", {worst.batches} of them because of one error"
    return f"{total}{some}: {worst.last_error}"


def _close(
    connection: Connection, hold: Hold, end: JobState, reason: str | BaseException | None
) -> bool:
    """Writes the end of a job whose row is locked; what failed or was cancelled keeps the reason that it
    has. False where the hold is lost.
    """
    statement = text(f"""
        UPDATE jobs SET state = :state, closed_at = now(),
               finished_at = coalesce(finished_at, now()),
               reason = CASE WHEN state IN ('failed', 'cancelled') THEN reason
                             ELSE :reason END,
               stored_bytes = CASE WHEN stored_bytes IS NOT NULL THEN (
                   SELECT coalesce(sum(b.part_bytes), 0) FROM batches b
                   WHERE b.job_id = :id AND b.part_name IS NOT NULL AND b.state <> 'split') END
        WHERE id = :id AND closed_at IS NULL AND {holds.held(Kind.FINISH, "id")}
    """)
    job_id = int(hold.subject)
    kept = None if reason is None else messages.stored(connection, job_id, reason)
    given = {"id": job_id, "state": end, "reason": kept, "token": hold.token}
    if not connection.execute(statement, given).rowcount:
        return False
    tenant_costs.count(connection, job_id)
    holds.release(connection, hold)
    return True
