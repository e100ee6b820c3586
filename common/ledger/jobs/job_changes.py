"""Fields of a job that change after its submit; its queued batches follow in pieces.

What is leased ends where it is. What is queued goes back to pending by `take_back`, a duty of the
reaper, and is admitted again with the new priority, to the new queue, within the new max_parallel.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import audit_log
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.connection import Actor, Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.jobs import jobs
from nightshift.common.spec import STORED, JobSpec
from nightshift.common.spec.changes import changed, with_engine_args
from nightshift.common.states import JobState

MOVES_BATCHES = frozenset({"priority", "pool", "max_parallel", "revision"})
"""Fields that stand in queued batches, or bound how many there are."""

STORED_SPEC = text("SELECT spec FROM jobs WHERE id = :id")
"""The spec as it is stored."""

WORKER = "nightshift-worker"
"""Who changed a job, where a worker did."""

HAS_RUN = text("SELECT sum(rows_done + rows_failed) > 0 FROM job_counters WHERE job_id = :id")
"""Whether rows of a job are over."""

CHANGE = text("""
    UPDATE jobs SET spec = CAST(:spec AS jsonb), pool = :pool, priority = :priority,
           max_parallel = :max_parallel, engine_key = :engine_key,
           requeue_below = CASE WHEN :requeue THEN :rank ELSE requeue_below END
    WHERE id = :id
""")
"""Stores a changed spec, and what of it stands in columns."""

OLD_VALUES = text("""
    -- All that is queued, by the index of this state: that is little. Batches of one job may be many.
    WITH queued AS MATERIALIZED (
        SELECT id, job_id, rank, priority, queue FROM batches WHERE state = 'queued'
    )
    SELECT q.id FROM queued q JOIN jobs j ON j.id = q.job_id
    WHERE j.id = :id AND (q.rank < j.requeue_below OR q.priority <> j.priority
                          OR q.queue <> concat_ws('.', j.pool, j.engine_key))
    ORDER BY q.id LIMIT :limit
""")
"""Batches that were queued before the change of their job, or beside it by the values of before."""

TAKE_BACK = text("""
    WITH taken AS MATERIALIZED (
        SELECT id FROM batches WHERE id = ANY (CAST(:ids AS bigint[])) AND state = 'queued'
        FOR UPDATE SKIP LOCKED
    )
    UPDATE batches SET state = 'pending', rank = NULL WHERE id = ANY (ARRAY(SELECT id FROM taken))
""")
"""Makes those pending that no claim holds at this moment."""

UNSETTLED = text("SELECT id, requeue_below FROM jobs WHERE requeue_below IS NOT NULL ORDER BY id")
"""Jobs of which queued batches may have old values."""

SETTLE = text("""
    UPDATE jobs SET requeue_below = NULL WHERE id = ANY (ARRAY(
        SELECT id FROM jobs WHERE id = :id AND requeue_below = :below FOR NO KEY UPDATE SKIP LOCKED))
""")
"""Notes that no queued batch has old values any more, unless the job has changed again since it was read."""


def change(
    connection: Connection, job_id: int, wanted: Mapping[str, str]
) -> dict[str, tuple[object, object]]:
    """Changes fields of a job; returns the old and the new value of each that differs.

    Raises BadInput for a cancelled job and for values that a spec cannot have. The rows of a job
    that moves to another pool keep coming from the revision that its model is held to.
    """
    # Lock the row of the engine before that of the job, as `loads.failed` does, which fails jobs.
    stored = connection.scalar(STORED_SPEC, {"id": job_id})
    if stored is None:
        raise jobs.gone(job_id)
    after, _, changes = changed(stored, wanted)
    if changes.keys() & {"pool", "revision"}:
        if "pool" in changes and "revision" not in changes:
            key = after.engine_key
            loads.carry_revision(connection, stored["pool"], key, after.pool, key)
        loads.forgive(connection, after.pool, after.engine_key)
    if jobs.lock(connection, job_id) is JobState.CANCELLED:
        raise BadInput(f"job {job_id} is cancelled, which is final: nothing of it can change")
    # Again, under the lock: another change may have been faster.
    stored = connection.scalar(STORED_SPEC, {"id": job_id})
    after, written, changes = changed(stored, wanted)
    if changes:
        _store(connection, job_id, after, written, not MOVES_BATCHES.isdisjoint(changes))
    return changes


def change_engine(
    connection: Connection,
    job_id: int,
    engine_key: str,
    args: Mapping[str, Any],
    why: BaseException,
) -> bool:
    """Gives a job that is not over an engine with other arguments, since the one that it has under this
    key runs none of its rows; `why` is kept as its remark. False where the job has another key by now,
    which may be that of a sibling's same change.

    BadInput where rows of the job came from another revision than that to which the new engine is held.
    """
    # Lock the row of the engine before that of the job, as `loads.failed` does, which fails jobs.
    stored = connection.scalar(STORED_SPEC, {"id": job_id})
    if stored is None:
        return False
    after, _ = with_engine_args(stored, args)
    if connection.scalar(HAS_RUN, {"id": job_id}):
        loads.carry_revision(connection, after.pool, engine_key, after.pool, after.engine_key)
    loads.forgive(connection, after.pool, after.engine_key)
    state = jobs.lock(connection, job_id)
    stored = connection.scalar(STORED_SPEC, {"id": job_id})
    if state.over or JobSpec.model_validate(stored, context=STORED).engine_key != engine_key:
        return False
    after, written = with_engine_args(stored, args)
    _store(connection, job_id, after, written, True)
    jobs.remark(connection, job_id, why)
    before = stored["engine"].get("args", {})
    detail = {
        f"engine.args.{name}": [before.get(name), value]
        for name, value in args.items()
        if before.get(name) != value
    }
    actor = Actor(WORKER, socket.gethostname())
    audit_log.record(connection, "set", job_id, detail=detail, actor=actor)
    return True


def _store(
    connection: Connection, job_id: int, after: JobSpec, written: Mapping[str, Any], requeue: bool
) -> None:
    given = {
        "id": job_id,
        "spec": json.dumps(written),
        "pool": after.pool,
        "priority": after.priority,
        "max_parallel": after.limits.max_parallel,
        "engine_key": after.engine_key,
        "requeue": requeue,
        "rank": dispatch.next_rank(connection),
    }
    connection.execute(CHANGE, given)


def take_back(connection: Connection, limit: int) -> int:
    """Makes queued batches of changed jobs pending again, at most `limit` of each of them; returns how
    many. Waits for nobody: a batch that a claim holds at this moment is left to the claim.

    Holds the lock of the admission, which may still queue batches by the values of before.
    """
    found = connection.execute(UNSETTLED).all()
    if not found or not dispatch.try_duty(connection, dispatch.DISPATCH_LOCK):
        return 0
    taken = 0
    for job_id, below in found:
        old = connection.scalars(OLD_VALUES, {"id": job_id, "limit": limit}).all()
        if old:
            taken += connection.execute(TAKE_BACK, {"ids": list(old)}).rowcount
        else:
            connection.execute(SETTLE, {"id": job_id, "below": below})
    return taken
