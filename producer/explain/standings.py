"""The standing of many jobs at once, from the facts of the ledger."""

from collections.abc import Collection

from nightshift.common.ledger import Connection
from nightshift.producer.advice.here import Here
from nightshift.producer.explain import facts
from nightshift.producer.explain.standing import Standing, standing


def of(
    connection: Connection, job_ids: Collection[int], here: Here, tenant: str | None = None
) -> dict[int, Standing]:
    """Return the standing of each of these jobs, in a fixed number of queries; for readers of a `tenant` without names
    of machines, of jobs of other tenants and of people.
    """
    known = facts.of_jobs(connection, job_ids, tenant=tenant, here=here)
    return {
        id: standing(each if tenant is None else each.for_guest()) for id, each in known.items()
    }
