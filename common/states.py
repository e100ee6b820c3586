"""Job and batch states, and the only table of allowed moves (DESIGN section 5)."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """True when no worker touches the job any more."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class ShownState(StrEnum):
    """Where a job stands, as people see it: a job that is running is at work, or waits."""

    AT_WORK = "at work"
    WAITS = "waits"
    DONE = "done"
    FAILED = "failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"

    @property
    def of_jobs(self) -> JobState:
        """The state that such jobs have."""
        return JOB_STATES[self]


JOB_STATES = {
    ShownState.AT_WORK: JobState.RUNNING,
    ShownState.WAITS: JobState.RUNNING,
    ShownState.DONE: JobState.COMPLETED,
    ShownState.FAILED: JobState.FAILED,
    ShownState.PAUSED: JobState.PAUSED,
    ShownState.CANCELLED: JobState.CANCELLED,
}
"""The state of a job by what people see."""


class BatchState(StrEnum):
    """Where a batch stands."""

    PENDING = "pending"
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    SPLIT = "split"


class Outcome(StrEnum):
    """How a lease ended (`attempts.outcome`); null while it runs."""

    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    LOST = "lost"
    SPLIT = "split"


class ArchiveState(StrEnum):
    """Where the batches, attempts and row errors of a closed job are (`job_archives.state`).

    Kept: in Postgres. Leaving and archived: the files are authoritative, and Postgres has some of the rows or none.
    """

    KEPT = "kept"
    LEAVING = "leaving"
    ARCHIVED = "archived"


class RowErrorKind(StrEnum):
    """Why a row has an error in place of an answer; users filter by these words."""

    BAD_RECORD = "bad_record"
    BAD_TYPE = "bad_type"
    RENDER_ERROR = "render_error"
    TOO_LONG = "too_long"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    INVALID_OUTPUT = "invalid_output"
    FUNCTION_ERROR = "function_error"
    TIMEOUT = "timeout"
    ENGINE_DIED = "engine_died"
    BATCH_DEAD = "batch_dead"


JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.RUNNING: frozenset(
        {JobState.PAUSED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.PAUSED: frozenset(
        {JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.COMPLETED: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING}),
    JobState.CANCELLED: frozenset(),
}

ARCHIVE_MOVES: dict[ArchiveState, frozenset[ArchiveState]] = {
    ArchiveState.KEPT: frozenset({ArchiveState.LEAVING}),
    ArchiveState.LEAVING: frozenset({ArchiveState.ARCHIVED}),
    ArchiveState.ARCHIVED: frozenset(),
}

BATCH_MOVES: dict[BatchState, frozenset[BatchState]] = {
    BatchState.PENDING: frozenset(
        {BatchState.QUEUED, BatchState.SPLIT, BatchState.DONE, BatchState.DEAD}
    ),
    BatchState.QUEUED: frozenset({BatchState.LEASED, BatchState.PENDING, BatchState.DONE}),
    BatchState.LEASED: frozenset(
        {BatchState.DONE, BatchState.DEAD, BatchState.PENDING, BatchState.SPLIT}
    ),
    BatchState.DONE: frozenset({BatchState.PENDING}),
    BatchState.DEAD: frozenset({BatchState.PENDING}),
    BatchState.SPLIT: frozenset(),
}
"""`pending -> done` and `queued -> done` are late commits: the lease ran out, no other child claimed
the batch, and so attempt and owner still match. `pending -> done` and `pending -> dead` also take
back a retry of rows whose job was over before they ran."""

BY_SERVER = "server"
"""What `jobs.resolved` has in place of a family where a remote server tells what is a thought."""
