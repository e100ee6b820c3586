"""Texts about a deadline: on time, late and how late, on time with how many more workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nightshift.common.allocation.deadlines import Outlook, Standing, outlook
from nightshift.common.ledger import Connection
from nightshift.common.ledger.jobs import deadlines
from nightshift.common.ledger.queries import job_pace
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.views.rates import Values

WITHOUT_EFFECT = {
    Standing.NO_RATE: "no measured rate yet",
    Standing.STALE_RATE: "the rate was measured more than a day ago",
    Standing.PAUSED: "paused",
}
"""Why a deadline changes no plan."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a job should be done, and what is expected; no outlook for a cancelled job."""

    finish_by: datetime
    outlook: Outlook | None

    @property
    def brief(self) -> str:
        """A few words, for a column."""
        if self.outlook is None:
            return "—"
        if self.outlook.late_seconds is not None:
            from nightshift.common.spec.finish_by import length

            return f"late by {length(timedelta(seconds=self.outlook.late_seconds))}"
        return str(self.outlook.standing)

    @property
    def text(self) -> str:
        """One phrase; empty for a cancelled job."""
        if self.outlook is None:
            return ""
        if (why := WITHOUT_EFFECT.get(self.outlook.standing)) is not None:
            return f"{why}: the deadline has no effect"
        more, text = self.outlook.more_slots, self.brief
        if more is not None:
            text += f", on time with {counted(more, 'more worker')}"
        return text

    @property
    def as_json(self) -> dict[str, Any]:
        """The object `deadline` of `status --json`."""
        seen = self.outlook
        late = None if seen is None or seen.late_seconds is None else round(seen.late_seconds, 1)
        return {
            "finish_by": self.finish_by.isoformat(),
            "standing": None if seen is None else str(seen.standing),
            "late_seconds": late,
            "more_workers": None if seen is None else seen.more_slots,
            "text": self.text,
        }


def with_deadlines(connection: Connection, rows: Sequence[Values]) -> list[dict[Any, Any]]:
    """Rows of job_progress with their `deadline`, None where a job has none."""
    ids = [row["job"] for row in rows]
    standings = deadlines.standings(connection, ids)
    running = [job for job, row in standings.items() if row["state"] == JobState.RUNNING]
    works = deadlines.works(connection, job_ids=running) if running else {}
    etas = {row["job"]: job_pace.likely_eta(job_pace.pace(row)) for row in rows}
    found = {
        job: Deadline(
            row["finish_by"].astimezone(),
            _ended(row) if job not in works else outlook(works[job], etas[job]),
        )
        for job, row in standings.items()
    }
    return [{**row, "deadline": found.get(row["job"])} for row in rows]


def _ended(row: Values) -> Outlook | None:
    """The outlook of a job that does not run: how it ended, if it ended by itself."""
    if row["state"] == JobState.PAUSED:
        return Outlook(Standing.PAUSED)
    if row["state"] == JobState.CANCELLED or row["finished_at"] is None:
        return None
    late: timedelta = row["finished_at"] - row["finish_by"]
    if late <= timedelta():
        return Outlook(Standing.ON_TIME)
    return Outlook(Standing.LATE, late.total_seconds())
