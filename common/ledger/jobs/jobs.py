"""Jobs: looked up, locked, paused, resumed, cancelled, failed, reopened, judged by failed rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import RowMapping, text

from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.ledger import holds
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import failure_limits, job_roots, messages
from nightshift.common.states import JOB_MOVES, JobState
from nightshift.common.text import counted, first_few

if TYPE_CHECKING:
    from nightshift.common.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the ledger knows it; `engine_key` is that of its queue and its children, which another release may
    have computed in another way from the same spec. `output_schema` is a serialized Arrow schema or None. `roots` are
    the folders that it was admitted under and that its tenant still has; None where it is held to none. `own` are the
    folders whose paths the tenant of the job may read in messages; None for a job without a tenant. `resolved` is what the first load of its model fixed; None before.
    """

    id: int
    state: JobState
    reason: str | None
    spec: "JobSpec"
    engine_key: str
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None
    created_at: datetime
    finished_at: datetime | None
    closed_at: datetime | None
    retries: int
    roots: tuple[str, ...] | None = None
    own: tuple[str, ...] | None = None
    resolved: dict[str, Any] | None = None
    archived_at: datetime | None = None

    @property
    def label(self) -> str:
        """The job as messages name it: `job 3 (tickets)`."""
        return f"job {self.id} ({self.spec.name})"


SELECT_JOB = text("""
    SELECT j.id, j.state, j.reason, j.spec, j.engine_key, j.identity, j.spec_identity, j.output_uri, j.input_schema,
           j.output_schema, j.created_at, j.finished_at, j.closed_at, j.retries, j.roots, j.uploads, j.outputs,
           j.resolved, j.archived_at, j.tenant, t.roots AS tenant_roots
    FROM jobs j LEFT JOIN tenants t ON t.name = j.tenant WHERE j.id = :id
""")
"""One job with all that `Job` has."""


def get(connection: Connection, job_id: int | None) -> Job | None:
    """The job with this number. Whatever this process opens in its output directory from now on is held
    to its roots.
    """
    row = connection.execute(SELECT_JOB, {"id": job_id}).mappings().one_or_none()
    if row is None:
        return None
    found = dict(row)
    named = ("roots", "uploads", "outputs")
    admitted = job_roots.Admitted(**{name: found.pop(name) for name in named})
    tenant, tenant_roots = found.pop("tenant"), found.pop("tenant_roots")
    roots = job_roots.still_held(admitted, tenant_roots)
    own = job_roots.owned(tenant, admitted, tenant_roots)
    # Tables of all jobs need no spec, whose parsers are a sixth of the imports of `nightshift status`.
    from nightshift.common import storage
    from nightshift.common.spec import STORED, JobSpec

    storage.keep_within(found["output_uri"], roots, storage.OF_JOB)
    spec = JobSpec.model_validate(found["spec"], context=STORED)
    return Job(
        **{**found, "state": JobState(found["state"]), "spec": spec, "roots": roots, "own": own}
    )


def engine_key(connection: Connection, job_id: int) -> str | None:
    """Which engine runs the job, by its key; None for no job."""
    statement = text("SELECT engine_key FROM jobs WHERE id = :id")
    found: str | None = connection.scalar(statement, {"id": job_id})
    return found


def by_output(connection: Connection, output_uri: str) -> Job | None:
    """The job that owns an output directory."""
    owner = text("SELECT id FROM jobs WHERE output_uri = :output_uri")
    return get(connection, connection.scalar(owner, {"output_uri": output_uri}))


def by_identity(connection: Connection, identity: str) -> Job | None:
    """The job of this identity."""
    same = text("SELECT id FROM jobs WHERE identity = :identity")
    return get(connection, connection.scalar(same, {"identity": identity}))


def overlapping_output(connection: Connection, output_uri: str) -> tuple[int, str] | None:
    """A job, by number and output, whose output lies inside this directory or around it."""
    statement = text("""
        SELECT id, output_uri FROM jobs
        WHERE starts_with(:output_uri, rtrim(output_uri, '/') || '/')
           OR starts_with(output_uri, rtrim(:output_uri, '/') || '/')
        ORDER BY id LIMIT 1
    """)
    found = connection.execute(statement, {"output_uri": output_uri}).one_or_none()
    return None if found is None else (found.id, found.output_uri)


def find(connection: Connection, reference: str) -> Job:
    """The job that a user names: by number, else the newest of that name.

    Raises BadInput if there is no such job, or if several jobs of that name are not over.
    """
    if reference.isdigit() and len(reference) < 19:
        job = get(connection, int(reference))
    else:
        named = connection.execute(NAMED, {"name": reference}).one()
        if named.live is not None and len(named.live) > 1:
            raise BadInput(
                f"several jobs that are not over are called {reference!r}: name one by its number, "
                f"{first_few(named.live)}"
            )
        job = get(connection, named.newest)
    if job is None:
        raise BadInput(f"there is no job {reference!r} in the ledger; see `nightshift jobs`")
    return job


NAMED = text("""
    SELECT max(id) AS newest,
           array_agg(id ORDER BY id DESC) FILTER (WHERE state IN ('running', 'paused')) AS live
    FROM jobs WHERE name = :name
""")
"""The newest job of a name, and all jobs of that name that are not over."""


def files(connection: Connection, job_id: int) -> list[SourceFile]:
    """The input files of a job in dataset order."""
    statement = text("""
        SELECT uri, format, size, fingerprint, row_count AS rows, first_row, arranged,
               rows_left_out AS left_out
        FROM input_files WHERE job_id = :job_id ORDER BY file_index
    """)
    found = connection.execute(statement, {"job_id": job_id})
    return [SourceFile(**row) for row in found.mappings()]


def progress(connection: Connection, job_id: int) -> RowMapping:
    """One row of the view job_progress; BadInput for a job that was deleted."""
    found = connection.execute(text("SELECT * FROM job_progress WHERE job = :id"), {"id": job_id})
    row = found.mappings().one_or_none()
    if row is None:
        raise gone(job_id)
    return row


def backing_off(connection: Connection, job_id: int) -> RowMapping:
    """How many batches of a job wait after an error (`batches`), how long the last of them still
    waits (`seconds`), and its `error`; the last two are None where none waits.
    """
    statement = text("""
        SELECT count(*) AS batches, extract(epoch FROM max(not_before) - now())::float8 AS seconds,
               (array_agg(last_error ORDER BY not_before DESC))[1] AS error
        FROM batches WHERE job_id = :id AND state = 'pending' AND not_before > now()
    """)
    return connection.execute(statement, {"id": job_id}).mappings().one()


def lock(connection: Connection, job_id: int) -> JobState:
    """Takes the job row FOR UPDATE: what resume, retry and close begin with.

    No work in progress takes the row, not even shared: a row that many transactions share at once
    is never free for the one that wants it alone, and each of them would cost multixact members.
    BadInput for a job that was deleted.
    """
    statement = text("SELECT state FROM jobs WHERE id = :id FOR UPDATE")
    state = connection.scalar(statement, {"id": job_id})
    if state is None:
        raise gone(job_id)
    return JobState(state)


def gone(job_id: int) -> BadInput:
    """The error for a job that was deleted while a command looked at the job."""
    return BadInput(f"job {job_id} is gone: it was deleted")


def pause(connection: Connection, job_id: int, reason: str | BaseException | None = None) -> None:
    """No further claims; what is leased runs on to its commit. BadInput when the job is over."""
    _control(connection, job_id, JobState.PAUSED, reason)


def try_lock_running(connection: Connection, job_id: int) -> bool:
    """Takes the row of a running job without waiting; False when the job is not running or another
    transaction changes it. For what only running jobs need and a later round tries again.
    """
    statement = text("""
        SELECT id FROM jobs WHERE id = :id AND state = 'running' FOR NO KEY UPDATE SKIP LOCKED
    """)
    return connection.scalar(statement, {"id": job_id}) is not None


def resume(connection: Connection, job_id: int) -> None:
    """Resumes a paused job; its failed rows are counted anew from here."""
    state = lock(connection, job_id)
    if state is JobState.RUNNING:
        return
    if state is not JobState.PAUSED:
        raise BadInput(f"job {job_id} is {state} and cannot be resumed")
    _move(connection, job_id, JobState.RUNNING)
    judge_anew(connection, job_id)


def judge_anew(connection: Connection, job_id: int) -> None:
    """Leaves the rows that failed so far out of what pauses the job, and forgets the remark."""
    statement = text("""
        UPDATE jobs SET judged_done = c.done, judged_failed = c.failed, judged_at = now(),
               remark = NULL
        FROM (SELECT coalesce(sum(rows_done), 0) AS done,
                     coalesce(sum(rows_failed), 0) AS failed
              FROM job_counters WHERE job_id = :id) AS c
        WHERE id = :id
    """)
    connection.execute(statement, {"id": job_id})


def judge_failures(connection: Connection, job_id: int) -> bool:
    """Pauses a running job of whose rows too many failed, or all alike; True if it did."""
    if pause_refused(connection, job_id):
        return True
    share = failure_limits.share_above_limit(connection, job_id, JobState.RUNNING)
    return share is not None and _move(
        connection,
        job_id,
        JobState.PAUSED,
        f"{share.failed} of the last {counted(share.over, 'row')} failed, more than "
        f"limits.max_failed_fraction {share.allowed:g} allows: see `nightshift errors {job_id}`",
    )


def pause_refused(connection: Connection, job_id: int) -> bool:
    """Pauses a running job whose rows were all refused in the same words; True if it did."""
    alike = failure_limits.refused_alike(connection, job_id, JobState.RUNNING)
    if alike is None:
        return False
    rows = f"all {counted(alike.failed, 'row')} that ran, in the same words"
    if alike.failed == 1:
        rows = "the one row that ran"
    return _move(
        connection,
        job_id,
        JobState.PAUSED,
        f"{failure_limits.REFUSED} {rows}: {alike.message}; see `nightshift errors {job_id}`",
    )


def failed_too_often(connection: Connection, job_id: int) -> bool:
    """Whether the failed rows of a paused job are those that pause a job."""
    return (
        failure_limits.refused_alike(connection, job_id, JobState.PAUSED) is not None
        or failure_limits.share_above_limit(connection, job_id, JobState.PAUSED) is not None
    )


def remark(connection: Connection, job_id: int, message: str | BaseException) -> None:
    """Keeps what a worker has to say of a running job; the first message stays until a resume or a
    retry.
    """
    statement = text("""
        UPDATE jobs SET remark = :message
        WHERE id = :id AND remark IS NULL AND state = 'running'
    """)
    kept = messages.stored(connection, job_id, message)
    connection.execute(statement, {"id": job_id, "message": kept})


def cancel(connection: Connection, job_id: int) -> None:
    """Ends the job for good; workers drop its requests within a heartbeat. Final."""
    _control(connection, job_id, JobState.CANCELLED)


def fail(connection: Connection, job_id: int, reason: str | BaseException) -> None:
    """Marks the job as failed, with the reason. A job that is over stays as it is."""
    _move(connection, job_id, JobState.FAILED, reason)


def refuse_deleted(connection: Connection, job_id: int) -> None:
    """BadInput for a job that is being deleted: some of its rows or files may be gone."""
    statement = text("SELECT EXISTS (SELECT FROM deletions WHERE job_id = :id)")
    if connection.scalar(statement, {"id": job_id}):
        raise BadInput(
            f"job {job_id} is being deleted: `nightshift delete {job_id}` continues the deletion"
        )


def is_archived(connection: Connection, job_id: int) -> bool:
    """Return True if the rows of a job are in the files of its archive."""
    statement = text("SELECT archived_at IS NOT NULL FROM jobs WHERE id = :id")
    return bool(connection.scalar(statement, {"id": job_id}))


def refuse_archived(connection: Connection, job_id: int) -> None:
    """Raise BadInput if a job was archived or is being deleted, so that its rows cannot change."""
    refuse_deleted(connection, job_id)
    if is_archived(connection, job_id):
        raise BadInput(
            f"job {job_id} was archived (NIGHTSHIFT_RETENTION_DAYS) and cannot be changed: submit its spec with --new "
            "and another output directory"
        )


def reopen(connection: Connection, job_id: int) -> None:
    """A completed or failed job runs again (retry).

    The caller makes batches pending and then calls `judge_anew`: rows that run again are judged
    again. BadInput for a job that is being deleted.
    """
    state = lock(connection, job_id)
    refuse_deleted(connection, job_id)
    if state in (JobState.RUNNING, JobState.PAUSED):
        return
    if not _move(connection, job_id, JobState.RUNNING):
        raise _impossible(job_id, state, JobState.RUNNING)
    opened = text("""
        UPDATE jobs SET finished_at = NULL, closed_at = NULL, reason = NULL WHERE id = :id
    """)
    connection.execute(opened, {"id": job_id})
    holds.end(connection, holds.Kind.FINISH, job_id)
    # Finish may have swept the part that a late owner wrote while the job was over: that owner must
    # not commit it now.
    leasing.take_owners(connection, job_id)


def count_change(connection: Connection, job_id: int) -> None:
    """Makes a manifest stale that is being written: rows run again, or came."""
    connection.execute(text("UPDATE jobs SET retries = retries + 1 WHERE id = :id"), {"id": job_id})


def fix_output_schema(connection: Connection, job_id: int, schema: bytes) -> bytes:
    """Sets the output schema if none is set (compare-and-set); returns the one that holds."""
    statement = text("""
        UPDATE jobs SET output_schema = coalesce(output_schema, :schema) WHERE id = :id
        RETURNING output_schema
    """)
    return bytes(connection.scalar(statement, {"id": job_id, "schema": schema}))


def fix_resolved(
    connection: Connection, job_id: int, resolved: Mapping[str, Any]
) -> dict[str, Any]:
    """Keep what a load of the job's model fixes for the job, if no earlier load did (compare-and-set); return
    what holds.
    """
    statement = text("""
        UPDATE jobs SET resolved = coalesce(resolved, CAST(:resolved AS jsonb)) WHERE id = :id
        RETURNING resolved
    """)
    given = {"id": job_id, "resolved": json.dumps(resolved)}
    held: dict[str, Any] = connection.scalar(statement, given)
    return held


def _control(
    connection: Connection,
    job_id: int,
    to: JobState,
    reason: str | BaseException | None = None,
) -> None:
    """Moves a job that is not over, by one short UPDATE; a job that is there already stays as it is.

    Queued batches of a job that does not run are claimed by nobody; a reaper takes them back from
    the queue later (`dispatch.unqueue`). BadInput when the job cannot move.
    """
    if _move(connection, job_id, to, reason):
        return
    # Locked, so that the state cannot change again before it is judged.
    state = lock(connection, job_id)
    if state is not to and not _move(connection, job_id, to, reason):
        raise _impossible(job_id, state, to)


def _move(
    connection: Connection,
    job_id: int,
    to: JobState,
    reason: str | BaseException | None = None,
) -> bool:
    """Sets the state of a job if that move is allowed; False when it is not."""
    moved = connection.execute(
        MOVE,
        {
            "id": job_id,
            "to": to,
            "reason": None if reason is None else messages.stored(connection, job_id, reason),
            "over": to.over,
            "movable": [state.value for state in JobState if to in JOB_MOVES[state]],
        },
    )
    return moved.rowcount > 0


def _impossible(job_id: int, state: JobState, to: JobState) -> BadInput:
    return BadInput(f"job {job_id} is {state} and cannot become {to}")


MOVE = text("""
    UPDATE jobs SET state = :to, reason = :reason, finished_at = CASE WHEN :over THEN now() END
    WHERE id = :id AND state = ANY (CAST(:movable AS text[]))
""")
"""Moves a job between two states."""
