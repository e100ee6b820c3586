"""What happens in a child: each happening is one event, and the recorder tells its subscribers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """What a child does for its batches, in the order in which a batch meets it."""

    CLAIM = "claim"
    READ = "read"
    RENDER = "render"
    TOKENIZE = "tokenize"
    QUEUE = "queue"
    INFER = "infer"
    TABLE = "table"
    WRITE = "write"
    COMMIT = "commit"
    SETTLE = "settle"


@dataclass(slots=True)
class StagePassed:
    """`count` batches (for QUEUE in vLLM: rows) went through a stage, or tried to.

    `cpu_seconds` are those of the stage's own thread.
    """

    stage: Stage
    seconds: float
    cpu_seconds: float = 0.0
    count: int = 1


@dataclass(slots=True)
class RowsEntered:
    """So many rows are the engine's from here on."""

    rows: int = 1


@dataclass(slots=True)
class RowsLeft:
    """So many rows left the engine, answered or not."""

    rows: int = 1


@dataclass(slots=True)
class EngineLoaded:
    """The engine is ready, and the child can claim."""

    engine: str
    version: str
    concurrency: int
    window_rows: int
    load_seconds: float


@dataclass(slots=True)
class BatchesClaimed:
    """A claim was answered: the child holds so many batches more; 0: none is admitted."""

    batches: int


@dataclass(slots=True)
class BatchCommitted:
    """A batch is committed: `part_rows` rows and `part_errors` of them failed are in its part.

    `rows` and `rows_failed` are those that ran, without the rows that a retry kept. `seconds` are
    counted from the claim. `whole` is False where unfinished rows were split off.
    """

    batch_id: int
    attempt: int
    part_rows: int
    part_errors: int
    rows: int
    rows_failed: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    whole: bool


@dataclass(slots=True)
class BatchEnded:
    """The child holds a batch no more.

    `outcome` is released, failed or lost; None after a commit, or when the ledger could not be
    told.
    """

    outcome: str | None = None


@dataclass(slots=True)
class LeaseFoundLost:
    """The lease of a batch belongs to somebody else."""

    batch_id: int
    attempt: int


@dataclass(slots=True)
class LeasesRenewed:
    """A heartbeat was answered: so many leases hold, so many were newly found lost."""

    held: int
    lost: int


@dataclass(slots=True)
class HeartbeatFailed:
    """Postgres did not answer a heartbeat."""

    error: Exception


@dataclass(slots=True)
class ProblemReported:
    """Something went wrong and the child goes on. `name` is the constant name of the log line, with
    `fields` and, for an exception that nobody expected, the traceback of `crash`.
    """

    name: str
    fields: dict[str, Any]
    crash: BaseException | None = None
