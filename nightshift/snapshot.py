"""A job as it stands: its row of the view `job_progress`, with the rates of `job_pace`, typed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from nightshift.common.ledger import Connection
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.advice.here import FLEET
from nightshift.producer.views.standings import with_standings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as it stood when it was looked at; docs/sql.md describes each figure.

    Rates are in rows and tokens a second, None where unknown. `waiting` says why nothing of
    a running job moves now, `reason` why the job is paused or failed; both are None otherwise.
    """

    job: int
    name: str
    pool: str
    priority: int
    state: JobState
    reason: str | None
    waiting: str | None
    rows_total: int
    rows_done: int
    rows_failed: int
    prompt_tokens: int
    output_tokens: int
    rows_per_second: float | None
    output_tokens_per_second: float | None
    eta_seconds: float | None
    eta_seconds_low: float | None
    eta_seconds_high: float | None
    engine_seconds: float | None
    cost: float | None
    cost_is_estimate: bool
    output_uri: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def rows_open(self) -> int:
        """Rows that have neither an answer nor an error yet."""
        return self.rows_total - self.rows_done - self.rows_failed

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Self:
        """Return the status in a row of `job_pace.of` with its standing."""
        values = {each.name: row[each.name] for each in fields(cls) if each.name != "state"}
        for name in FLOATS:
            values[name] = None if values[name] is None else float(values[name])
        return cls(**values, state=JobState(row["status"]))

    def __str__(self) -> str:
        over = self.rows_done + self.rows_failed
        rows = f"{over:,} of {counted(self.rows_total, 'row')}, {self.rows_failed:,} failed"
        return f"job {self.job} ({self.name}) is {self.state}: {rows}"


def statuses(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[JobStatus]:
    """Return the status of each row of `job_pace`, in their order."""
    return [JobStatus.of(row) for row in with_standings(connection, rows, FLEET)]


FLOATS = (
    "rows_per_second",
    "output_tokens_per_second",
    "eta_seconds",
    "eta_seconds_low",
    "eta_seconds_high",
    "engine_seconds",
    "cost",
)
