"""Moves of a job: pause, resume, cancel, fail, reopen; and the locks that they begin with."""

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger.connection import Connection
from nightshift.common.states import JOB_MOVES, JobState


def lock(connection: Connection, job_id: int) -> JobState:
    """Takes the job row FOR UPDATE: what pause, resume, cancel, retry and close begin with."""
    state = connection.scalar(
        text("SELECT state FROM jobs WHERE id = :id FOR UPDATE"), {"id": job_id}
    )
    return JobState(state)


def lock_shared(connection: Connection, job_id: int) -> JobState:
    """Takes the job row FOR SHARE: what every transaction that inserts batches begins with."""
    state = connection.scalar(
        text("SELECT state FROM jobs WHERE id = :id FOR SHARE"), {"id": job_id}
    )
    return JobState(state)


def try_lock_shared(connection: Connection, job_id: int) -> bool:
    """The same without waiting; False when another transaction holds the row FOR UPDATE."""
    found = connection.scalar(
        text("SELECT id FROM jobs WHERE id = :id FOR SHARE SKIP LOCKED"), {"id": job_id}
    )
    return found is not None


def pause(connection: Connection, job_id: int, reason: str | None = None) -> None:
    """No further claims; what is leased runs on to its commit. BadInput when the job is over."""
    state = lock(connection, job_id)
    if state is not JobState.PAUSED:
        _move(connection, job_id, state, JobState.PAUSED, reason)
        _unqueue(connection, job_id)


def resume(connection: Connection, job_id: int) -> None:
    """A paused job goes on; its share of failed rows is counted anew from here."""
    state = lock(connection, job_id)
    if state is JobState.RUNNING:
        return
    if state is not JobState.PAUSED:
        raise BadInput(f"job {job_id} is {state} and cannot be resumed")
    _move(connection, job_id, state, JobState.RUNNING)
    judge_anew(connection, job_id)


def judge_anew(connection: Connection, job_id: int) -> None:
    """Leaves the rows that failed so far out of the share of failed rows."""
    connection.execute(
        text("""
            UPDATE jobs SET judged_done = c.done, judged_failed = c.failed
            FROM (SELECT coalesce(sum(rows_done), 0) AS done,
                         coalesce(sum(rows_failed), 0) AS failed
                  FROM job_counters WHERE job_id = :id) AS c
            WHERE id = :id
        """),
        {"id": job_id},
    )


def cancel(connection: Connection, job_id: int) -> None:
    """Ends the job for good; workers drop its requests within a heartbeat. Final."""
    state = lock(connection, job_id)
    if state is not JobState.CANCELLED:
        _move(connection, job_id, state, JobState.CANCELLED)
        _unqueue(connection, job_id)


def fail(connection: Connection, job_id: int, reason: str) -> None:
    """Ends the job as failed (its engine cannot be loaded)."""
    state = lock(connection, job_id)
    if not state.over:
        _move(connection, job_id, state, JobState.FAILED, reason)
        _unqueue(connection, job_id)


def reopen(connection: Connection, job_id: int) -> None:
    """A completed or failed job runs again (retry).

    The caller makes batches pending and then calls `judge_anew`: rows that run again are judged
    again.
    """
    state = lock(connection, job_id)
    if state in (JobState.RUNNING, JobState.PAUSED):
        return
    _move(connection, job_id, state, JobState.RUNNING)
    connection.execute(
        text("""
            UPDATE jobs SET finished_at = NULL, closed_at = NULL, finisher = NULL,
                   finisher_until = NULL, reason = NULL WHERE id = :id
        """),
        {"id": job_id},
    )
    _disown(connection, job_id)


def _disown(connection: Connection, job_id: int) -> None:
    """Takes the owners from pending batches: finish may have swept the part that a late owner
    wrote while the job was over, so that owner must not commit it now.
    """
    connection.execute(
        text("""
            UPDATE batches SET owner = NULL WHERE id IN (
                SELECT id FROM batches WHERE job_id = :id AND state = 'pending'
                AND owner IS NOT NULL ORDER BY id FOR UPDATE)
        """),
        {"id": job_id},
    )


def _move(
    connection: Connection, job_id: int, state: JobState, to: JobState, reason: str | None = None
) -> None:
    """Sets the state of a job that is in `state`; the caller holds its row FOR UPDATE."""
    if to not in JOB_MOVES[state]:
        raise BadInput(f"job {job_id} is {state} and cannot become {to}")
    connection.execute(
        text("""
            UPDATE jobs SET state = :to, reason = :reason,
                   finished_at = CASE WHEN :over THEN now() END
            WHERE id = :id
        """),
        {"id": job_id, "to": to, "reason": reason, "over": to.over},
    )


def _unqueue(connection: Connection, job_id: int) -> None:
    """Moves the queued batches of a job back to pending."""
    connection.execute(
        text("""
            UPDATE batches SET state = 'pending', rank = NULL
            WHERE id IN (SELECT id FROM batches WHERE job_id = :id AND state = 'queued'
                         ORDER BY id FOR UPDATE)
              AND state = 'queued'
        """),
        {"id": job_id},
    )
