"""What a batch is in the hands of an owner: its lease, its part, its rows' errors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import RowMapping

from nightshift.common.descriptor import Descriptor, Locator, RowRanges, SourceFile
from nightshift.common.errors import LeaseLost
from nightshift.common.ledger.jobs.answer_counts import NOTHING, AnswerCounts
from nightshift.common.row_errors import RowError

LONE_LOSSES = 2
"""After so many losses a batch runs alone in a child (DESIGN section 5)."""

SOURCE_COLUMNS = ("uri", "format", "size", "fingerprint", "file_rows", "first_row", "arranged")
"""The input file of a batch row, in the order of SourceFile."""

NO_ROWS = RowRanges(())


@dataclass(frozen=True, slots=True)
class Lease:
    """A claimed batch: what to read, what to redo, and the fence.

    `redo` is None for all rows; else only those run and the others keep the line that stands in
    the part `kept_part`. `later` are rows of a retry that run under a later lease. `alone` says
    that the batch runs beside no other in its child. `isolated` marks a single row that killed
    every child that ran it alone: the row is written as `engine_died` and not run.
    """

    batch_id: int
    attempt: int
    owner: str
    job_id: int
    seq: int
    descriptor: Descriptor
    alone: bool
    isolated: bool
    redo: RowRanges | None
    kept_part: str | None
    later: RowRanges = NO_ROWS

    @property
    def todo(self) -> RowRanges:
        """The rows that run under this lease."""
        return self.descriptor.rows if self.redo is None else self.redo

    @property
    def fence(self) -> dict[str, object]:
        """Parameters of a statement about a held batch."""
        return {"id": self.batch_id, "attempt": self.attempt, "owner": self.owner}

    @property
    def lost(self) -> LeaseLost:
        """The error for a fence that does not match."""
        return LeaseLost(
            f"batch {self.batch_id} attempt {self.attempt} belongs to another worker now"
        )

    def narrowed(self, rows: RowRanges) -> "Lease":
        """The same lease of a retry, over `rows` of its rows only; the others run later."""
        return replace(self, redo=rows, later=self.later.union(self.todo.minus(rows)))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt and output tokens."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Part:
    """Facts of a written part: name in the output directory, bytes, SHA-256, tokens, errors.

    `spent` are the tokens of the rows that ran under this lease; None where all rows of the part
    ran under it. `engine_microseconds` is the engine time of the job that the attempt accounts for.
    `answered` counts the answers of the rows that ran under this lease.
    """

    name: str
    bytes: int
    checksum: str
    prompt_tokens: int
    output_tokens: int
    errors: Sequence[RowError]
    spent: Tokens | None = None
    engine_microseconds: int = 0
    answered: AnswerCounts = NOTHING

    @property
    def tokens_spent(self) -> Tokens:
        """The tokens of the rows that ran, without those of kept answers."""
        return self.spent or Tokens(self.prompt_tokens, self.output_tokens)

    @property
    def facts(self) -> dict[str, object]:
        """Parameters of a statement that names the part in its batch."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "checksum": self.checksum,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: a child of a worker with its engine."""

    owner: str
    pool: str
    engine_key: str
    engine: str
    engine_version: str

    @property
    def queue(self) -> str:
        """The queue that has the batches for this child."""
        return f"{self.pool}.{self.engine_key}"


def descriptor(row: RowMapping) -> Descriptor:
    """The descriptor of a batch row that was joined with its input file."""
    source = SourceFile(*(row[column] for column in SOURCE_COLUMNS))
    locator = None
    if row["locator_row"] is not None:
        locator = Locator(row["locator_row"], row["byte_offset"], row["byte_length"])
    return Descriptor(source, row["rows"], locator)
