"""Max-min shares: between tenants by weight, then between the jobs of a tenant by weight.

Demand is the only cap (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2).
What deadlines need is a floor below a job's share, within the share of its tenant: the earliest
deadline first, which keeps the greatest lateness least (Jackson's rule, 1955).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nightshift.common.allocation.demand import JobDemand

Id = TypeVar("Id", int, str)

ROUNDING = 1e-6
"""Parts of a slot below this come from adding up floating point numbers."""


@dataclass(frozen=True, slots=True)
class KeyShares:
    """Shares by engine key: `alone` as if no job had a deadline, `shares` with what deadlines need,
    above 0 for each key. `reserved` are the parts of a slot that late jobs need, the most urgent first,
    for keys with a job that would be late with its share alone, or with the part of it that other deadlines leave.
    """

    alone: dict[str, float]
    shares: dict[str, float]
    reserved: dict[str, float]


def max_min(
    capacity: float,
    claims: Mapping[Id, tuple[float, float]],
    floors: Mapping[Id, float] | None = None,
) -> dict[Id, float]:
    """Max-min shares of a capacity; `claims` are weight and cap by id, and no share passes its cap or
    is below its floor. The floors together are no more than the capacity.
    """
    floors = floors or {}
    fixed: dict[Id, float] = {}
    while True:
        rest = {each: claim for each, claim in claims.items() if each not in fixed}
        shares = _filled(capacity - sum(fixed.values()), rest)
        short = {
            each: floors[each]
            for each, share in shares.items()
            if share < floors.get(each, 0.0) - ROUNDING
        }
        # Raising one share to its floor leaves less for the others. A claim that was below its floor would
        # stay below it, so its share is fixed at the floor.
        fixed |= short
        if not short:
            return fixed | shares


def _filled(capacity: float, claims: Mapping[Id, tuple[float, float]]) -> dict[Id, float]:
    shares: dict[Id, float] = {}
    weights = sum(weight for weight, _ in claims.values())
    for each, (weight, cap) in sorted(claims.items(), key=lambda item: item[1][1] / item[1][0]):
        shares[each] = min(cap, capacity * weight / weights)
        capacity -= shares[each]
        weights -= weight
    return shares


def key_shares(capacity: float, jobs: Sequence[JobDemand]) -> KeyShares:
    """The share of each engine key in so many slots: between tenants, then between their jobs."""
    by_tenant: dict[str, list[JobDemand]] = defaultdict(list)
    for job in jobs:
        by_tenant[job.tenant].append(job)
    tenants = max_min(
        capacity,
        {
            name: (own[0].tenant_weight, sum(job.slots for job in own))
            for name, own in by_tenant.items()
        },
    )
    without: dict[str, float] = defaultdict(float)
    shares: dict[str, float] = defaultdict(float)
    late: list[tuple[JobDemand, float, tuple[bool, float, int]]] = []
    for name, own in by_tenant.items():
        claims = {job.job_id: (job.weight, job.slots) for job in own}
        alone = max_min(tenants[name], claims)
        floors = _floors(tenants[name], own)
        given = max_min(tenants[name], claims, floors)
        for job in own:
            without[job.engine_key] += alone[job.job_id]
            shares[job.engine_key] += max(given[job.job_id], ROUNDING)
            floor = floors.get(job.job_id, 0.0)
            share = given[job.job_id]
            is_pressed = share < alone[job.job_id] - ROUNDING and share <= floor + ROUNDING
            if floor > 0 and (alone[job.job_id] < floor - ROUNDING or is_pressed):
                late.append((job, floor, job.urgency(tenants[name])))
    reserved: dict[str, float] = defaultdict(float)
    for job, slots, _ in sorted(late, key=lambda each: each[2]):
        reserved[job.engine_key] += slots
    return KeyShares(dict(without), dict(shares), dict(reserved))


def _floors(capacity: float, jobs: Sequence[JobDemand]) -> dict[int, float]:
    """What each job's deadline needs, as far as the capacity goes, the most urgent first."""
    floors: dict[int, float] = {}
    for job in sorted(jobs, key=lambda job: job.urgency(capacity)):
        if job.least_slots > 0:
            floors[job.job_id] = min(job.least_slots, job.slots, capacity)
            capacity -= floors[job.job_id]
    return floors
