"""A tenant with many jobs gets no more than a tenant with one: of slots, and of a queue."""

from collections import Counter

import pytest
from sqlalchemy import text

from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.producer.reaper.admission import decide
from nightshift.producer.serve.ledger import tenants
from nightshift.worker.supervisor import planning
from tests.support.world import World, child_of, make_ready

WEIGHTS = pytest.mark.parametrize(
    ("weight", "share"), [(1.0, 1 / 2), (2.0, 2 / 3)], ids=["half each", "two thirds by weight"]
)
LARGE = (256,) * 12


def jobs_of_both(world: World, weight: float, callable: str) -> int:
    """Ten jobs of the tenant many, and one of the tenant one with this weight, whose number comes back."""
    with world.ledger.transaction() as connection:
        for name in ("many", "one"):
            tenants.ensure(connection, name)
        given = {"weight": weight}
        connection.execute(text("UPDATE tenants SET weight = :weight WHERE name = 'one'"), given)
    for number in range(10):
        world.job(*LARGE, name=f"many-{number}", tenant="many")
    return world.job(*LARGE, name="one", tenant="one", callable=callable)


@WEIGHTS
def test_slots_are_shared_between_tenants(world: World, weight: float, share: float) -> None:
    job_id = jobs_of_both(world, weight, "rules:other")
    slots = [SlotReport(number, "", None, None, leaves=False) for number in range(6)]
    machine = Machine("m", "default", "host")

    def orders() -> list[str | None]:
        with world.ledger.transaction() as connection:
            found, _ = fleet.report(
                connection, machine, slots, idle_seconds=0, seen_every_seconds=0
            )
        return [order.planned_key for order in found]

    orders()
    assert planning.renew(world.ledger, "default", 30.0)
    world.ask("UPDATE pool_plans SET computed_at = now() + interval '1 minute' RETURNING 1")
    assert orders().count(world.specs[job_id].engine_key) == 6 * share


@WEIGHTS
def test_a_queue_is_shared_between_tenants(world: World, weight: float, share: float) -> None:
    """Also where most jobs of a tenant are leased as a whole, with nothing left to admit."""
    job_id = jobs_of_both(world, weight, "rules:shout")
    small = world.job(256, 256, 256, name="small", tenant="many")
    make_ready(world, child_of(world.specs[job_id], 0))
    world.admit(small)
    world.claim(small)
    with world.ledger.transaction() as connection:
        jobs = dispatch.open_jobs(connection)
        assert small not in [job.id for job in jobs]
        admitted = Counter(decide(jobs, dispatch.capacities(connection, 30.0)))
    in_flight = admitted.total() + 3
    assert admitted[job_id] == pytest.approx(in_flight * share, abs=1)
