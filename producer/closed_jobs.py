"""Read the rows of closed jobs, wherever they are: in Postgres, or in an archive, which a wing reads."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs, messages
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.one_transaction import OneTransaction
from nightshift.common.ledger.queries import failed_rows
from nightshift.producer import wings


@contextmanager
def readable(ledger: Ledger, job: Job) -> Iterator[Ledger]:
    """Yield a ledger that has every row of a job, to read from: `ledger` itself or, for an archived job, one read-only
    transaction over its archive, which code that is called inside gets as its ledger.

    Raises BadInput if a file of the archive is missing or was modified, or if the job is being deleted.
    """
    if isinstance(ledger, OneTransaction):
        yield ledger
        return
    for read in wings.offered("read_archived"):
        with read(ledger, job) as found:
            yield found
        return
    with ledger.transaction() as connection:
        jobs.refuse_deleted(connection, job.id)
        if jobs.is_archived(connection, job.id):
            raise BadInput(
                f"the batches of job {job.id} are in its archive, which nightshift reads with its "
                "folder producer/archive alone"
            )
    yield ledger


def errors(
    ledger: Ledger, job: Job, *, kind: str | None, limit: int, tenant: str | None = None
) -> tuple[dict[str, int], list[Mapping[Any, Any]]]:
    """How many rows of each kind failed, the most frequent first, and the first of them in dataset
    order, of one kind if named, as a reader of a `tenant` may see them.
    """
    with readable(ledger, job) as own, own.transaction() as connection:
        kinds = failed_rows.count_by_kind(connection, job.id)
        rows = failed_rows.first(connection, job.id, kind=kind, limit=limit)
        whole = messages.NOTHING if tenant else messages.whole(connection, job.id)
        return kinds, [whole.row(row, "message") for row in rows]
