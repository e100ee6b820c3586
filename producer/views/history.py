"""The history of a job: each lease, where it ran, how it ended and why."""

from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import job_facts
from nightshift.producer.archive import come_back
from nightshift.producer.views import fleet_tables, rates


@dataclass(frozen=True, slots=True)
class History:
    """Leases of a job, the newest first, and how many ended how."""

    job: Job
    attempts: list[Row]
    outcomes: dict[str, int]

    def table(self) -> RenderableType:
        """For people."""
        return fleet_tables.attempts(self.attempts, self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """For machines; `why` is the sentence that the table has."""
        return {
            "job": self.job.id,
            "name": self.job.spec.name,
            "outcomes": self.outcomes,
            "attempts": [
                {
                    **rates.plain(row),
                    "outcome": row["outcome"] or "running",
                    "why": fleet_tables.why(row),
                }
                for row in self.attempts
            ],
        }


def history(
    ledger: Ledger, job: Job, *, limit: int | None, outcome: str | None, seq: int | None
) -> History:
    """The latest leases of a job; those of an archived job come back from its archive first."""
    come_back.bring_back(ledger, job)
    with ledger.transaction() as connection:
        found = job_facts.attempts(connection, job.id, limit=limit, outcome=outcome, seq=seq)
        return History(job, found, job_facts.outcomes(connection, job.id))
