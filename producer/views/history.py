"""The history of a job: each lease, where it ran, how it ended and why; and who changed the job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.audit_log import Change
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts
from nightshift.producer import closed_jobs
from nightshift.producer.views import fleet_tables, leases, rates


@dataclass(frozen=True, slots=True)
class History:
    """Leases of a job, the newest first, how many ended how, and what people changed, the oldest first. `most` is how
    many leases there are of those that were asked for.
    """

    job: Job
    attempts: list[Mapping[Any, Any]]
    most: int
    outcomes: dict[str, int]
    changes: list[Change]

    def table(self) -> RenderableType:
        """For people."""
        attempts = fleet_tables.attempts(self.attempts, self.outcomes, self.most)
        if not self.changes:
            return attempts
        return Group(fleet_tables.changes(self.changes), "", attempts)

    def as_json(self) -> dict[str, Any]:
        """For machines; `why` is the sentence that the table has."""
        return {
            "job": self.job.id,
            "name": self.job.spec.name,
            "changes": [rates.plain(row) for row in self.changes],
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
    ledger: Ledger,
    job: Job,
    *,
    limit: int | None,
    outcome: str | None,
    seq: int | None,
    tenant: str | None = None,
) -> History:
    """The latest leases of a job. A reader of a `tenant` sees no names of others who changed the job."""
    with closed_jobs.readable(ledger, job) as own, own.transaction() as connection:
        found = job_facts.attempts(connection, job.id, limit=limit, outcome=outcome, seq=seq)
        outcomes = job_facts.outcomes(connection, job.id)
        most = sum(outcomes.values()) if outcome is None else outcomes.get(outcome, 0)
        changed = audit_log.of_job(connection, job.id, tenant)
        seen = leases.seen(connection, job.id, found, tenant)
        return History(job, seen, len(found) if seq is not None else most, outcomes, changed)
