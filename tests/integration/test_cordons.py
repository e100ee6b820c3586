"""Cordons: who is meant, what the plan, the children and an autoscaler see of them."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.allocation.plan import beside_cordoned
from nightshift.common.ledger.fleet import cordons, workers
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet.slots import Machine, SlotOrder, SlotReport
from nightshift.producer.cli.app import app
from nightshift.worker.supervisor import planning
from tests.support.world import World, child_of, make_ready

A, B = Machine("s-a", "default", "gpu-1"), Machine("s-b", "default", "gpu-2")
FREE = [SlotReport(number, "", None, None, leaves=False) for number in range(2)]


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def report(world: World, machine: Machine, slots: list[SlotReport] = FREE) -> list[SlotOrder]:
    with world.ledger.transaction() as connection:
        return fleet.report(connection, machine, slots, idle_seconds=0, seen_every_seconds=0)[0]


def held(world: World, machine: Machine) -> list[tuple[bool, bool]]:
    """Whether each slot of a machine is cordoned and drained, as its supervisor hears."""
    return [(order.cordoned, order.drained) for order in report(world, machine)]


def test_a_host_a_worker_a_slot_or_its_child_is_meant(
    world: World, nightshift: Callable[..., Result]
) -> None:
    child = replace(child_of(world.specs[world.job(1)]), id="w-1", supervisor="s-b", slot=1)
    world.run(workers.register, child)
    for machine in (A, B):
        report(world, machine)
    assert nightshift("cordon", "gpu-1").stdout == (
        "host gpu-1: state in service -> cordoned; 2 slots of 1 worker; "
        "`nightshift uncordon gpu-1` takes it back into service\n"
    )
    assert held(world, A) == [(True, False)] * 2
    assert held(world, B) == [(False, False)] * 2
    said = json.loads(nightshift("drain", "w-1", "--json").stdout)
    assert (said["subject"], said["slots"]) == ("worker s-b/1", 1)
    assert held(world, B) == [(False, False), (True, True)]
    assert nightshift("cordon", "s-b").exit_code == 0
    assert held(world, B) == [(True, False), (True, True)]
    assert (
        "1 of which the cordon of worker s-b/1 still holds; `nightshift uncordon s-b/1` ends it"
        in nightshift("uncordon", "s-b").stdout
    )
    assert nightshift("uncordon", "s-b/1").exit_code == 0
    assert held(world, B) == [(False, False)] * 2
    assert "the cordon of host gpu-1 still holds" in nightshift("uncordon", "s-a/0").stdout
    again = nightshift("uncordon", "gpu-2")
    assert again.stdout.startswith("host gpu-2: nothing changed, it has no cordon")
    nightshift("drain", "gpu-2")
    again = nightshift("drain", "gpu-2")
    assert "nothing changed, it was drained before: 2 slots" in again.stdout
    assert "`nightshift workers` shows when they are free" in again.stdout
    assert nightshift("uncordon", "gpu-2").exit_code == 0
    unknown = nightshift("drain", "nobody")
    assert (unknown.exit_code, "'nobody' is neither a host nor a worker" in unknown.stderr) == (
        2,
        True,
    )
    assert "`nightshift workers` lists them" in unknown.stderr
    actions = world.ask("SELECT action, subject FROM audit_log WHERE job_id IS NULL ORDER BY id")
    assert [tuple(row) for row in actions if row.action != "migrate"] == [
        ("cordon", "host gpu-1"),
        ("drain", "worker s-b/1"),
        ("cordon", "worker s-b"),
        ("uncordon", "worker s-b"),
        ("uncordon", "worker s-b/1"),
        ("drain", "host gpu-2"),
        ("uncordon", "host gpu-2"),
    ]


def test_a_cordon_of_a_host_outlives_its_workers_and_one_of_a_worker_does_not(
    world: World,
) -> None:
    for machine in (A, B):
        report(world, machine)
    for name in ("gpu-1", "s-b", "s-b/0"):
        target = world.run(cordons.find, name)
        world.run(lambda connection, target=target: cordons.cordon(connection, target, drains=True))
    for machine in (A, B):
        world.run(fleet.leave, machine.supervisor)
    assert [row["name"] for row in world.run(cordons.listed)] == ["gpu-1"]
    assert held(world, replace(A, supervisor="s-new")) == [(True, True)] * 2


def test_the_plan_leaves_cordoned_slots_out_and_an_autoscaler_asks_for_others(
    world: World,
) -> None:
    job_id = world.job(*[256] * 3)
    key = world.specs[job_id].engine_key
    for machine in (A, B):
        report(world, machine)
    target = world.run(cordons.find, "gpu-1")
    world.run(lambda connection: cordons.cordon(connection, target, drains=False))
    assert planning.renew(world.ledger, "default", 60)
    assert {order.planned_key for order in report(world, A)} == {None}
    assert {order.planned_key for order in report(world, B)} == {key}
    # The job fills three slots, and the two that are cordoned count as machines of the pool.
    [row] = world.ask("SELECT desired_workers FROM pool_demand")
    assert row.desired_workers == 5


@pytest.mark.parametrize(
    ("desired", "cordoned", "expected"),
    [
        ({}, 2, {}),
        ({"a": 0}, 2, {"a": 0}),
        ({"a": 1, "b": 3}, 0, {"a": 1, "b": 3}),
        ({"a": 1, "b": 3}, 2, {"a": 1, "b": 5}),
        ({"b": 2, "a": 2}, 1, {"a": 3, "b": 2}),
    ],
)
def test_an_autoscaler_counts_cordoned_machines_among_those_it_has(
    desired: dict[str, int], cordoned: int, expected: dict[str, int]
) -> None:
    assert beside_cordoned(desired, cordoned) == expected


def test_an_idle_child_of_a_cordoned_slot_takes_no_share_of_the_work(world: World) -> None:
    child = replace(child_of(world.specs[world.job(1)], 0), supervisor="s-a", host="gpu-1")
    make_ready(world, child)
    warm = SlotReport(0, "", child.id, child.engine_key, leaves=False, idle=True)
    target = cordons.Target("host", "gpu-1")
    world.run(lambda connection: cordons.cordon(connection, target, drains=False))
    report(world, A, [warm])
    assert world.ask("SELECT state FROM workers")[0].state == "draining"
    world.run(cordons.uncordon, target)
    report(world, A, [warm])
    assert world.ask("SELECT state FROM workers")[0].state == "ready"
