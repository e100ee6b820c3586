"""Rows of closed jobs that have left Postgres: who needs them asks here, and the wing that took them away
brings them back.
"""

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import archives, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows
from nightshift.producer import wings


def bring_back(ledger: Ledger, job: Job) -> None:
    """Sees to it that every row of a job is in Postgres, and stays there for `retention_days`.

    A second call goes on after a crash, and two at the same time help each other. Raises BadInput
    when a file of the archive is gone or is another one now; ArchiveTaken.
    """
    ways = wings.offered("bring_back")
    for bring in ways:
        bring(ledger, job)
    if not ways:
        _refuse_away(ledger, job)


def errors(
    ledger: Ledger, job: Job, *, kind: str | None, limit: int
) -> tuple[dict[str, int], list[Row]]:
    """How many rows of each kind failed, the most frequent first, and the first of them in dataset
    order, of one kind if named. Those of an archived job are read from its archive.
    """
    ways = wings.offered("archived_errors")
    if not ways:
        _refuse_away(ledger, job)
    for read in ways:
        found: tuple[dict[str, int], list[Row]] | None = read(ledger, job, kind=kind, limit=limit)
        if found is not None:
            return found
    with ledger.transaction() as connection:
        kinds = failed_rows.count_by_kind(connection, job.id)
        return kinds, failed_rows.first(connection, job.id, kind=kind, limit=limit)


def _refuse_away(ledger: Ledger, job: Job) -> None:
    """BadInput where a job is being deleted, or where rows of it have left Postgres and no wing knows the way back."""
    with ledger.transaction() as connection:
        jobs.refuse_deleted(connection, job.id)
        if archives.is_away(connection, job.id):
            raise BadInput(
                f"the batches of job {job.id} are in its archive, which nightshift reads with its "
                "folder producer/archive alone"
            )
