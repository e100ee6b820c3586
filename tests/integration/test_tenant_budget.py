"""The budget of a tenant: what its jobs cost together, also those that are closed, from when it begins."""

from typing import Any

import pytest

from nightshift.common.ledger.jobs import deletions, job_end, jobs, spending, tenant_costs
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.common.states import JobState
from nightshift.producer.serve import access
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import tenants
from nightshift.producer.serve.tenants import tenants as control
from tests.support.reaper import OneReaper
from tests.support.world import World

PRICED: dict[str, Any] = {
    "engine": {"backend": "openai", "model": "M", "price_per_million_output_tokens": 1_000_000},
    "task": {"kind": "generate", "prompt": "{{ text }}"},
}
"""An output token costs 1."""


def job(world: World, name: str, tenant: str = "acme") -> int:
    with world.ledger.transaction() as connection:
        tenants.ensure(connection, tenant)
    return world.job(1, name=name, tenant=tenant, **PRICED)


def spend(world: World, job_id: int, tokens: int) -> None:
    """What a job has cost until now."""
    world.run(spending.report, "w", [Spent(job_id, 0, 1, 0, tokens)])


def state(world: World, job_id: int) -> JobState:
    return JobState(world.ask("SELECT state FROM jobs WHERE id = %s", job_id)[0].state)


def spent_out(world: World) -> str | None:
    return world.run(tenant_costs.spent_out, "acme")


def test_jobs_pause_and_nothing_begins_once_they_cost_the_budget_together(world: World) -> None:
    first, second, foreign = (
        job(world, "first"),
        job(world, "second"),
        job(world, "foreign", "other"),
    )
    control.change(world.ledger, "acme", {"budget": "10"})
    spend(world, first, 6)
    spend(world, foreign, 1000)
    assert world.run(tenant_costs.over_budget) == []
    spend(world, second, 4)
    reaper = OneReaper(world.ledger)
    reaper.round()
    reaper.close()
    assert [state(world, each) for each in (first, second)] == [JobState.PAUSED] * 2
    assert state(world, foreign) is JobState.RUNNING
    reason = world.ask("SELECT reason FROM jobs WHERE id = %s", first)[0].reason
    assert "the tenant acme has spent 10.00, which reaches its budget 10.00" in reason
    with pytest.raises(ApiError) as refusal, world.ledger.transaction() as connection:
        access.refuse_spent(connection, "acme")
    assert (refusal.value.status, refusal.value.retried) == (429, False)
    assert refusal.value.code == "insufficient_quota"


def test_a_job_that_is_closed_and_deleted_counts_once(world: World) -> None:
    first, second = job(world, "first"), job(world, "second")
    control.change(world.ledger, "acme", {"budget": "10"})
    spend(world, first, 6)
    world.run(jobs.cancel, first)
    world.run(job_end.abandon, world.run(job_end.take, first, "test"), "gone")
    world.run(tenant_costs.count, first)
    assert world.ask("SELECT spent FROM tenants WHERE name = 'acme'")[0].spent == 6
    with world.ledger.transaction() as connection:
        deletions.begin(connection, first, output=False)
        while deletions.delete_page(connection, first):
            pass
        deletions.end(connection, first)
    spend(world, second, 3)
    assert spent_out(world) is None
    assert world.run(tenant_costs.spent) == {"acme": 9}
    spend(world, second, 4)
    assert spent_out(world) is not None


def test_a_budget_begins_anew(world: World) -> None:
    """What open and closed jobs have cost before counts no more."""
    first, second = job(world, "first"), job(world, "second")
    control.change(world.ledger, "acme", {"budget": "5"})
    for each in (first, second):
        spend(world, each, 6)
    world.run(jobs.cancel, first)
    world.run(job_end.abandon, world.run(job_end.take, first, "test"), "gone")
    assert spent_out(world) is not None
    control.change(world.ledger, "acme", {"budget": "5"})
    assert spent_out(world) is None
    spend(world, second, 10)
    assert spent_out(world) is None
    spend(world, second, 11)
    assert spent_out(world) is not None
    control.change(world.ledger, "acme", {"budget": "none"})
    assert spent_out(world) is None
