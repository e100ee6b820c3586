"""Where the archive takes part: rows of jobs that were closed for long leave Postgres, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.common.ledger import Ledger, Row
    from nightshift.common.ledger.jobs.jobs import Job
    from nightshift.producer.reaper.duty import Duty, Reaper


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Jobs that have been closed for `retention_days` leave."""
    from nightshift.producer.archive import retention

    return retention.duties(reaper)


def bring_back(ledger: Ledger, job: Job) -> None:
    """See `closed_jobs.py`."""
    from nightshift.producer.archive import come_back

    come_back.bring_back(ledger, job)


def archived_errors(
    ledger: Ledger, job: Job, *, kind: str | None, limit: int
) -> tuple[dict[str, int], list[Row]] | None:
    """See `closed_jobs.py`."""
    from nightshift.producer.archive import come_back

    return come_back.archived_errors(ledger, job, kind=kind, limit=limit)
