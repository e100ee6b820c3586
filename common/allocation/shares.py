"""Max-min shares: between tenants, then between the jobs of a tenant by weight.

Demand is the only cap (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from nightshift.common.allocation.demand import JobDemand

Id = TypeVar("Id", int, str)


def max_min(capacity: float, claims: Mapping[Id, tuple[float, float]]) -> dict[Id, float]:
    """Max-min shares of a capacity; `claims` are weight and cap by id, and no share passes its cap."""
    shares: dict[Id, float] = {}
    weights = sum(weight for weight, _ in claims.values())
    for each, (weight, cap) in sorted(claims.items(), key=lambda item: item[1][1] / item[1][0]):
        shares[each] = min(cap, capacity * weight / weights)
        capacity -= shares[each]
        weights -= weight
    return shares


def key_shares(capacity: float, jobs: Sequence[JobDemand]) -> dict[str, float]:
    """The share of each engine key in so many slots: between tenants, then between their jobs."""
    by_tenant: dict[str, list[JobDemand]] = defaultdict(list)
    for job in jobs:
        by_tenant[job.tenant].append(job)
    tenants = max_min(
        capacity, {name: (1.0, sum(job.slots for job in own)) for name, own in by_tenant.items()}
    )
    shares: dict[str, float] = defaultdict(float)
    for name, own in by_tenant.items():
        given = max_min(tenants[name], {job.job_id: (job.weight, job.slots) for job in own})
        for job in own:
            shares[job.engine_key] += given[job.job_id]
    return dict(shares)
