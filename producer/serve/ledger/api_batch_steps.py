"""The way of a batch of the OpenAI API: taken by a reaper, begun as a job, refused, expired, ended.

A reaper has a batch under a hold, which saves work; what protects a batch is that each step names the
state that it leaves and the token of the hold, under the lock of the batch's row.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.jobs import jobs
from nightshift.common.text import storable
from nightshift.producer.serve.ledger import outbox
from nightshift.producer.serve.ledger.api_batches import (
    COLUMNS,
    ApiBatch,
    ApiBatchStatus,
    as_batch,
)

FREE = holds.free(Kind.API_BATCH, "b.id")
HELD = holds.held(Kind.API_BATCH, "id")

VALIDATING = text(f"""
    SELECT b.id
    FROM api_batches b JOIN (
        SELECT tenant, random() AS turn FROM api_batches WHERE state = 'validating' GROUP BY tenant
    ) t USING (tenant)
    WHERE b.state = 'validating' AND {FREE}
    ORDER BY t.turn, b.seq LIMIT 1 FOR UPDATE OF b SKIP LOCKED
""")
"""The oldest batch whose file nobody reads, of one tenant by lot: nobody waits for all batches of another."""

ENDED = text(f"""
    SELECT b.id
    FROM api_batches b LEFT JOIN jobs j ON j.id = b.job_id JOIN (
        SELECT tenant, random() AS turn FROM api_batches
        WHERE state IN ('in_progress', 'finalizing', 'cancelling')
        GROUP BY tenant) t ON t.tenant = b.tenant
    WHERE b.state IN ('in_progress', 'finalizing', 'cancelling')
      AND (j.id IS NULL OR j.closed_at IS NOT NULL)
      AND {FREE}
    ORDER BY t.turn, {holds.tried_at(Kind.API_BATCH, "b.id")} NULLS FIRST, b.seq LIMIT 1
    FOR UPDATE OF b SKIP LOCKED
""")
"""A batch whose job is over, files included, and whose results nobody writes; of one tenant by lot."""

FINALIZING = text(f"""
    UPDATE api_batches SET
        state = CASE state WHEN 'in_progress' THEN 'finalizing' ELSE state END,
        finalizing_at = CASE state WHEN 'cancelling' THEN finalizing_at
                                   ELSE coalesce(finalizing_at, now()) END
    WHERE id = :id RETURNING {COLUMNS}
""")
"""From now on its results are written, unless it is being cancelled."""

BEGIN = text(f"""
    UPDATE api_batches SET state = 'in_progress', in_progress_at = now(), job_id = :job_id,
        model = :model, rows_total = :rows, reserved_rows = :rows, reserved_tokens = :tokens,
        estimated_tokens = :tokens
    WHERE id = :id AND state = 'validating' AND {HELD}
""")
"""The file is good: the batch is a job from now on."""

REFUSE = text(f"""
    UPDATE api_batches SET state = 'failed', failed_at = now(), errors = CAST(:errors AS jsonb),
        rows_total = :rows, model = :model
    WHERE id = :id AND state = 'validating' AND {HELD}
""")
"""The file is bad: nothing runs."""

EXPIRED = text("""
    SELECT id, job_id FROM api_batches
    WHERE state IN ('validating', 'in_progress') AND expires_at < now()
      AND NOT EXISTS (SELECT FROM jobs j
                      WHERE j.id = job_id AND j.state IN ('completed', 'failed'))
    ORDER BY seq LIMIT :most FOR UPDATE SKIP LOCKED
""")
"""Open batches whose time is over, and whose rows are not."""

TOLD_TO_END = text(f"""
    SELECT b.id, b.job_id FROM api_batches b JOIN jobs j ON j.id = b.job_id
    WHERE b.state IN ('finalizing', 'cancelling') AND b.ends_as IS NOT NULL
      AND j.state IN ('running', 'paused') AND {FREE}
    ORDER BY b.seq LIMIT :most FOR UPDATE OF b SKIP LOCKED
""")
"""Batches that were cancelled or have expired although their job runs: the process that put its rows back died
before it saw that.
"""

END = text(f"""
    WITH before AS (
        UPDATE api_files SET state = 'deleted', touched_at = '-infinity'
        WHERE :written AND state = 'ready' AND id IN (
            SELECT unnest(ARRAY[output_file_id, error_file_id]) FROM api_batches
            WHERE id = :id AND state IN ('finalizing', 'cancelling') AND {HELD})
    )
    UPDATE api_batches SET state = :state,
        output_file_id = CASE WHEN :written THEN :output_file_id ELSE output_file_id END,
        error_file_id = CASE WHEN :written THEN :error_file_id ELSE error_file_id END,
        rows_completed = CASE WHEN :written THEN :completed ELSE rows_completed END,
        rows_failed = :failed,
        usage = CAST(:usage AS jsonb), errors = coalesce(CAST(:errors AS jsonb), errors),
        reserved_rows = 0, reserved_tokens = 0,
        completed_at = CASE :state WHEN 'completed' THEN now() END,
        failed_at = CASE :state WHEN 'failed' THEN now() END,
        expired_at = CASE :state WHEN 'expired' THEN now() END,
        cancelled_at = CASE :state WHEN 'cancelled' THEN now() END
    WHERE id = :id AND state IN ('finalizing', 'cancelling') AND {HELD}
""")
"""The batch is over; what it had reserved is free. New files of results take the place of those that a
retry has left.
"""


def take_validating(connection: Connection, who: str) -> tuple[ApiBatch, Hold] | None:
    """Takes the oldest batch whose file wants to be read; None where there is none."""
    return _taken(
        connection, VALIDATING, text(f"SELECT {COLUMNS} FROM api_batches WHERE id = :id"), who
    )


def take_ended(connection: Connection, who: str) -> tuple[ApiBatch, Hold] | None:
    """Takes a batch whose job is closed, or deleted; from now on it is finalizing, or cancelling."""
    return _taken(connection, ENDED, FINALIZING, who)


def begin(
    connection: Connection,
    hold: Hold,
    *,
    job_id: int,
    model: str,
    rows: int,
    tokens: int,
) -> bool:
    """The batch is this job from now on; False where the batch is not validating any more, or is held
    by another: then the job must not be.
    """
    given = {"job_id": job_id, "model": model, "rows": rows, "tokens": tokens}
    return _last_write(connection, BEGIN, hold, given)


def refuse(
    connection: Connection,
    hold: Hold,
    errors: Sequence[Mapping[str, Any]],
    *,
    rows: int = 0,
    model: str | None = None,
) -> bool:
    """The batch failed for these errors, and nothing of it runs; False as `begin`."""
    given = {"errors": json.dumps(storable(list(errors))), "rows": rows, "model": model}
    refused = _last_write(connection, REFUSE, hold, given)
    if refused:
        outbox.write(connection, hold.subject)
    return refused


def expire(connection: Connection, most: int) -> list[str]:
    """Ends the time of batches that are past it, at most `most`: one that runs loses its job and ends
    as expired once its results are written. Returns their ids.
    """
    found = connection.execute(EXPIRED, {"most": most}).all()
    for batch in found:
        if batch.job_id is None:
            statement = text("""
                UPDATE api_batches SET state = 'expired', expired_at = now() WHERE id = :id
            """)
            connection.execute(statement, {"id": batch.id})
            holds.end(connection, Kind.API_BATCH, batch.id)
            outbox.write(connection, batch.id)
            continue
        statement = text("""
            UPDATE api_batches SET state = 'finalizing', finalizing_at = now(), ends_as = 'expired'
            WHERE id = :id
        """)
        connection.execute(statement, {"id": batch.id})
        cancel_job(connection, batch.job_id)
    return [batch.id for batch in found]


def cancel_strays(connection: Connection, most: int) -> list[str]:
    """Cancels jobs that run although their batches were told to end, at most `most`; returns the ids of
    the batches.
    """
    found = connection.execute(TOLD_TO_END, {"most": most}).all()
    for batch in found:
        cancel_job(connection, batch.job_id)
    return [batch.id for batch in found]


def cancel(connection: Connection, batch: ApiBatch) -> None:
    """Cancels a batch whose row the caller has locked, and which is validating or in progress. One
    that is validating is cancelled at once: nothing of it ever runs.
    """
    if batch.job_id is None:
        statement = text("""
            UPDATE api_batches SET state = 'cancelled', cancelling_at = now(), cancelled_at = now()
            WHERE id = :id
        """)
        connection.execute(statement, {"id": batch.id})
        holds.end(connection, Kind.API_BATCH, batch.id)
        outbox.write(connection, batch.id)
        return
    statement = text("""
        UPDATE api_batches SET state = 'cancelling', cancelling_at = now(), ends_as = 'cancelled'
        WHERE id = :id
    """)
    connection.execute(statement, {"id": batch.id})
    cancel_job(connection, batch.job_id)


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files of a batch's results as they are shown, one without a line as None, and the lines of answers."""

    output_file_id: str | None
    error_file_id: str | None
    completed: int


def end(
    connection: Connection,
    hold: Hold,
    state: ApiBatchStatus,
    *,
    written: WrittenFiles | None,
    failed: int,
    usage: Mapping[str, Any],
    errors: Sequence[Mapping[str, Any]] | None = None,
) -> bool:
    """The batch is over, with these files if they are `written`, else with those that it has; False
    where it is not being finalized by this reaper.
    """
    given = {
        **asdict(written or WrittenFiles(None, None, 0)),
        "state": str(state),
        "written": written is not None,
        "failed": failed,
        "usage": json.dumps(usage),
        "errors": None if errors is None else json.dumps(storable(list(errors))),
    }
    ended = _last_write(connection, END, hold, given)
    if ended:
        outbox.write(connection, hold.subject)
    return ended


def ends_as(connection: Connection, id: str) -> ApiBatchStatus | None:
    """How the batch ends because its job was cancelled for it; None where that was not so."""
    found = connection.scalar(text("SELECT ends_as FROM api_batches WHERE id = :id"), {"id": id})
    return None if found is None else ApiBatchStatus(found)


def cancel_job(connection: Connection, job_id: int) -> None:
    """Cancels the job of a batch. A job that is over keeps its state, and a deleted job has none."""
    if jobs.get(connection, job_id) is not None and not jobs.lock(connection, job_id).over:
        jobs.cancel(connection, job_id)


def _taken(
    connection: Connection, choice: Any, change: Any, who: str
) -> tuple[ApiBatch, Hold] | None:
    """The batch that was chosen and locked, with its hold. None where no batch waits, or where another process
    has just taken the batch: the choice cannot see that yet.
    """
    chosen = connection.scalar(choice)
    hold = None if chosen is None else holds.take(connection, Kind.API_BATCH, chosen, who)
    if hold is None:
        return None
    return as_batch(connection.execute(change, {"id": chosen}).mappings().one()), hold


def _last_write(
    connection: Connection, statement: Any, hold: Hold, given: Mapping[str, object]
) -> bool:
    """What a reaper writes of its batch, and gives the batch back; False where the batch is another's."""
    # Locked first: the statement sees who has the batch from then on.
    lock = text("SELECT id FROM api_batches WHERE id = :id FOR UPDATE")
    connection.execute(lock, {"id": hold.subject})
    written = {**given, "id": hold.subject, "token": hold.token}
    if connection.execute(statement, written).rowcount != 1:
        return False
    holds.release(connection, hold)
    return True
