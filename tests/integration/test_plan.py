"""The plan of a pool in the ledger: who computes it, who reads it, what an autoscaler sees."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nightshift.common.errors import SchemaMismatch
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import pool_plans, workers
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet.slots import Machine, SlotOrder, SlotReport
from nightshift.common.ledger.jobs import jobs
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import Settings
from nightshift.worker.supervisor import planning
from nightshift.worker.supervisor.supervisor import Supervisor
from nightshift.worker.telemetry.machine import MachineMetrics
from tests.support.databases import statements
from tests.support.world import World, child_of, make_ready

ALIVE_SECONDS = 30.0


def machine(name: str = "m", serves: str | None = None) -> Machine:
    return Machine(name, "default", "host", serves)


def empty(count: int) -> list[SlotReport]:
    return [SlotReport(number, "", None, None, leaves=False) for number in range(count)]


def report(
    world: World, slots: list[SlotReport], who: Machine | None = None
) -> tuple[list[SlotOrder], bool]:
    with world.ledger.transaction() as connection:
        return fleet.report(
            connection, who or machine(), slots, idle_seconds=0, seen_every_seconds=0
        )


def age(world: World, seconds: float) -> None:
    """Makes every plan so old; less than 0 for one that stays young however slow the test is."""
    made = "UPDATE pool_plans SET computed_at = now() - make_interval(secs => %s) RETURNING 1"
    world.ask(made, seconds)


def plan(world: World) -> None:
    """Computes the plan anew, however young the last one is."""
    age(world, 60)
    assert planning.renew(world.ledger, "default", ALIVE_SECONDS)
    age(world, -60)


def ordered(world: World, slots: list[SlotReport], who: Machine | None = None) -> list[str | None]:
    """The engines that a machine's slots should have."""
    return [order.planned_key for order in report(world, slots, who)[0]]


def held_by(world: World, job_id: int, number: int, *, leaves: bool = False) -> SlotReport:
    """The slot of a ready child that holds no batch."""
    child = child_of(world.specs[job_id], number)
    make_ready(world, child)
    return SlotReport(number, "", child.id, child.engine_key, leaves)


def other(world: World, *sizes: int, **facts: int) -> int:
    return world.job(*sizes, name="other", callable="rules:other", **facts)


def test_two_engines_of_equal_priority_share_a_machine(world: World) -> None:
    keys = {
        world.specs[job].engine_key for job in (world.job(*[256] * 9), other(world, *[256] * 9))
    }
    orders, is_old = report(world, empty(4))
    assert is_old
    assert [order.planned_key for order in orders] == [None] * 4
    plan(world)
    planned = ordered(world, empty(4))
    assert {key: planned.count(key) for key in keys} == dict.fromkeys(keys, 2)
    jobs_to_load = {order.planned_key: order.job_id for order in report(world, empty(4))[0]}
    assert {world.specs[job].engine_key: job for job in world.specs} == jobs_to_load


def test_one_supervisor_at_a_time_plans_and_a_young_plan_stays(
    world: World, frozen: Connection
) -> None:
    assert pool_plans.try_lock(frozen, "default")
    assert not planning.renew(world.ledger, "default", ALIVE_SECONDS)
    assert planning.renew(world.ledger, "another", ALIVE_SECONDS)
    age(world, -60)
    assert not planning.renew(world.ledger, "another", ALIVE_SECONDS)


def test_a_supervisor_frozen_while_it_plans_stops_no_machine(
    world: World, frozen: Connection
) -> None:
    key = world.specs[world.job(256)].engine_key
    report(world, empty(1))
    plan(world)
    assert pool_plans.demand(frozen, "default")
    pool_plans.try_lock(frozen, "default")
    pool_plans.store(frozen, "default", {"m/0": "elsewhere"}, {}, [])
    assert ordered(world, empty(1)) == [key]
    assert world.ask("SELECT count(*) AS n FROM slots")[0].n == 1


def test_a_stale_plan_leaves_each_slot_what_it_has(world: World) -> None:
    world.job(256)
    report(world, empty(1))
    plan(world)
    age(world, 3)
    assert report(world, empty(1)) == ([SlotOrder(0, None, None, None, None)], True)


def test_machines_that_are_gone_leave_the_fleet(world: World) -> None:
    key = world.specs[world.job(256)].engine_key
    report(world, empty(1), machine("gone"))
    report(world, empty(1), machine("ended"))
    report(world, empty(1), machine("stays"))
    silent = "UPDATE slots SET seen_at = now() - interval '31 s' WHERE supervisor = %s RETURNING 1"
    world.ask(silent, "gone")
    world.run(fleet.leave, "ended")
    plan(world)
    assert ordered(world, empty(1), machine("stays")) == [key]
    assert ordered(world, empty(1), machine("gone")) == [None]
    world.run(workers.end_supervisor, "stays")
    assert world.ask("SELECT count(*) AS n FROM slots WHERE supervisor = 'stays'")[0].n == 0


def test_a_slot_of_one_engine_is_planned_for_no_other(world: World) -> None:
    key = world.specs[world.job(256)].engine_key
    only = machine(serves="another")
    report(world, empty(1), only)
    plan(world)
    assert ordered(world, empty(1), only) == [None]
    assert ordered(world, empty(1), machine("m2")) == [None]
    plan(world)
    assert ordered(world, empty(1), machine("m2")) == [key]


def test_a_child_that_makes_room_counts_as_what_its_slot_will_have(world: World) -> None:
    first = world.job(256)
    slots = [held_by(world, first, 0)]
    world.commit(world.lease(first))
    second = other(world, 256)
    report(world, slots)
    plan(world)
    key = world.specs[second].engine_key
    assert ordered(world, slots) == [key]
    leaving = [SlotReport(0, "", slots[0].worker_id, slots[0].engine_key, leaves=True)]
    for _ in range(2):
        assert ordered(world, leaving) == [key]
        plan(world)
    assert ordered(world, empty(1)) == [key]


def test_leased_batches_are_demand_of_those_who_hold_them(world: World) -> None:
    """Four children with a last small batch each keep their slots beside equal work of another."""
    first = world.job(1, 1, 1, 1)
    slots = [held_by(world, first, number) for number in range(4)]
    for number in range(4):
        world.admit(first, 1)
        world.claim(first, owner=f"child-{number}", most=1)
    other(world, *[256] * 9)
    report(world, slots)
    plan(world)
    mine = world.specs[first].engine_key
    assert sorted(key == mine for key in ordered(world, slots)) == [False, True, True, True]


def test_a_batch_that_is_leased_already_makes_nobody_load_its_engine(world: World) -> None:
    job_id = world.job(1)
    slots = [held_by(world, job_id, 0), SlotReport(1, "", None, None, leaves=False)]
    world.lease(job_id, owner="child-0")
    report(world, slots)
    plan(world)
    assert ordered(world, slots) == [world.specs[job_id].engine_key, None]


def test_batches_that_back_off_for_longer_than_a_load_are_no_work_yet(world: World) -> None:
    job_id = world.job(2, 2)
    slots = "SELECT slots > 0 AS wanted FROM job_demand"
    world.ask("UPDATE batches SET not_before = now() + interval '1 minute' RETURNING id")
    assert world.ask(slots)[0].wanted is False
    make_ready(world, child_of(world.specs[job_id]))
    world.ask("UPDATE engines SET load_seconds = 90 RETURNING pool")
    assert world.ask(slots)[0].wanted is True


def test_the_parallel_batches_of_a_job_are_its_demand_at_most(world: World) -> None:
    world.job(*[1000] * 20, limits={"max_parallel": 3})
    [job] = world.run(pool_plans.demand, "default")
    assert (job.slots, job.most_slots) == (3, 3)


def test_an_autoscaler_is_told_what_the_plan_says_and_without_a_plan_the_same(
    world: World,
) -> None:
    job_id = world.job(*[256] * 5)
    desired = "SELECT desired_workers AS desired FROM pool_demand"
    assert world.ask(desired)[0].desired == 5
    report(world, empty(1))
    plan(world)
    assert world.ask(desired)[0].desired == 5
    world.ask(
        "UPDATE pool_plans SET desired_slots = jsonb_build_object(%s::text, 7) RETURNING pool",
        world.specs[job_id].engine_key,
    )
    assert world.ask(desired)[0].desired == 7
    age(world, 3)
    assert world.ask(desired)[0].desired == 5


def test_slots_that_help_with_single_batches_count_once_they_hold_one(world: World) -> None:
    job_id = world.job(*[1] * 9)
    demand = "SELECT slots, most_slots FROM job_demand"
    desired = "SELECT desired_workers AS desired FROM pool_demand"
    assert world.ask(demand)[0].most_slots == 9
    assert world.ask(desired)[0].desired == 1
    world.admit(job_id)
    for number in range(3):
        child = child_of(world.specs[job_id], number)
        make_ready(world, child)
        world.claim(job_id, owner=child.id, most=1)
    assert world.ask(desired)[0].desired == 3


def test_a_paused_job_is_loaded_by_nobody(world: World) -> None:
    job_id = world.job(256)
    report(world, empty(1))
    plan(world)
    world.run(jobs.pause, job_id)
    assert [order.job_id for order in report(world, empty(1))[0]] == [None]
    plan(world)
    assert ordered(world, empty(1)) == [None]


def test_an_unchanged_slot_is_written_seldom(world: World) -> None:
    seen = "SELECT xmin::text AS version FROM slots"
    with world.ledger.transaction() as connection:
        fleet.report(connection, machine(), empty(1), idle_seconds=0, seen_every_seconds=10)
    before = world.ask(seen)
    with world.ledger.transaction() as connection:
        fleet.report(connection, machine(), empty(1), idle_seconds=0, seen_every_seconds=10)
    assert world.ask(seen) == before
    report(world, empty(1))
    assert world.ask(seen) != before


def test_a_lost_slot_is_in_no_plan_and_stands_so_in_worker_status(world: World) -> None:
    job_id = world.job(256, 256)
    key = world.specs[job_id].engine_key
    lost = replace(held_by(world, job_id, 0), lost=True)
    slots = [lost, SlotReport(1, "", None, None, leaves=False)]
    report(world, slots)
    with world.ledger.transaction() as connection:
        workers.end(connection, str(lost.worker_id), died="the kernel keeps it")
        assert [slot.id for slot in pool_plans.slots(connection, "default", ALIVE_SECONDS)] == [
            "m/1"
        ]
    plan(world)
    assert ordered(world, slots) == [None, key]
    seen = world.ask("SELECT worker, host, slot, state FROM worker_status")
    assert [(row.worker, row.slot, row.state) for row in seen] == [(lost.worker_id, 0, "lost")]
    report(world, [replace(slots[1], slot=0), slots[1]])
    assert world.ask("SELECT worker FROM worker_status") == []


def supervisor(world: World) -> Supervisor:
    """One of a machine of eight slots, which tests look with."""
    return Supervisor(
        world.ledger,
        Settings(),
        pool="default",
        slot_count=8,
        gpus=(),
        engine_key=None,
        identity="m",
        profile=None,
        metrics=MachineMetrics("default"),
    )


def test_a_machine_without_work_asks_once_for_all_its_slots(world: World) -> None:
    """Once it sent a statement more for the version of the tables, and planned for nobody."""
    one = supervisor(world)
    with statements(world.ledger) as sent:
        one.look()
    assert len(sent) == 2, "it asks once, and writes all new slots at once"
    with statements(world.ledger) as sent:
        one.reported()
    assert len(sent) == 1, sent
    assert world.ask("SELECT count(*) AS slots FROM slots")[0].slots == 8
    assert world.ask("SELECT * FROM pool_plans") == []


def test_a_supervisor_leaves_tables_that_want_newer_code(world: World) -> None:
    world.ask("UPDATE ledger_meta SET compatible_from = 9999 RETURNING 1")
    with pytest.raises(SchemaMismatch, match="upgrade nightshift-fleet"):
        report(world, empty(1))


def test_a_spec_of_a_newer_release_is_left_to_others_and_stops_no_other_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the slots behind it in the round got no child."""
    unreadable, readable = world.job(*[256] * 9), other(world, *[256] * 9)
    newer = "UPDATE jobs SET spec = spec || '{\"newer\": 1}' WHERE id = %s RETURNING 1"
    world.ask(newer, unreadable)
    keys = [world.specs[job].engine_key for job in (unreadable, readable)]
    orders = [
        SlotOrder(0, None, None, keys[0], unreadable),
        SlotOrder(1, None, None, keys[1], readable),
    ]
    one = supervisor(world)
    one.slots = one.slots[:2]
    started: list[str] = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        started.append(json.loads(command[-1])["engine_key"])
        return SimpleNamespace(pid=1)

    monkeypatch.setattr(one, "_orders", lambda: (orders, False))
    monkeypatch.setattr(ProcessGroup, "start", start)
    one.choose()
    for slot in one.slots:
        slot.free()
    assert started == [keys[1]]
    [row] = world.ask("SELECT engine_key, concern FROM refusals")
    assert (row.engine_key, row.concern) == (keys[0], "worker")
