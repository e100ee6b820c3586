"""Neighbouring batches of an arranged job go to the child that had the ones before."""

import random
from collections import Counter

import pytest

from nightshift.common.ledger.batches import claims, dispatch, neighbours
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.ledger.connection import Connection
from tests.support.world import World


class Team:
    """Children of one queue that claim and commit; `last` is what each remembers of arranged jobs."""

    def __init__(self, world: World, job_ids: list[int], names: list[str]) -> None:
        self.world, self.job_ids = world, job_ids
        self.held: dict[str, list[Lease]] = {name: [] for name in names}
        self.last: dict[str, dict[int, int]] = {name: {} for name in names}
        self.had: dict[tuple[int, int], str] = {}

    def admit(self, each: int) -> None:
        """Keeps about so many batches of each job queued."""
        with self.world.ledger.transaction() as connection:
            queued = Counter(
                connection.exec_driver_sql(
                    "SELECT job_id FROM batches WHERE state = 'queued'"
                ).scalars()
            )
            most = {job_id: max(0, each - queued[job_id]) for job_id in self.job_ids}
            dispatch.admit_many(connection, most, dispatch.next_rank(connection))

    def claim(self, name: str, most: int, *, forward: bool = True) -> list[int]:
        """The numbers of the batches that a child has got."""
        key = self.world.specs[self.job_ids[0]].engine_key
        who = Claimant(name, "default", key, "function", "1")
        with self.world.ledger.transaction() as connection:
            if forward:
                neighbours.bring_forward(connection, who, self.last[name], most)
            leases = claims.claim(
                connection,
                who,
                room_rows=10**6,
                max_batches=most,
                idle=False,
                woken="poll",
                lease_seconds=600,
            )
        for lease in leases:
            self.had[lease.job_id, lease.seq] = name
            self.last[name][lease.job_id] = lease.seq
        self.held[name] += leases
        return [lease.seq for lease in leases]

    def commit(self, name: str, most: int) -> None:
        for lease in self.held[name][:most]:
            self.world.commit(lease)
        del self.held[name][:most]

    @property
    def seams(self) -> int:
        """How many neighbours were run by two children."""
        return sum(
            self.had[job_id, seq] != self.had[job_id, seq + 1]
            for job_id, seq in self.had
            if (job_id, seq + 1) in self.had
        )


def seams(world: World, jobs: int, *, forward: bool) -> int:
    """Four children run jobs of 100 batches, in an order drawn by a seed; every batch runs once."""
    name = "forward" if forward else "plain"
    job_ids = [world.job(*[1] * 100, name=f"{name}-{number}") for number in range(jobs)]
    team = Team(world, job_ids, [f"{name}-{letter}" for letter in "abcd"])
    turns = random.Random(18)
    for _ in range(2_000):
        team.admit(24)
        child = turns.choice(list(team.held))
        if not team.claim(child, 2, forward=forward) or len(team.held[child]) > 4:
            team.commit(child, 2)
        if len(team.had) == 100 * jobs:
            break
    assert sorted(team.had) == [(job_id, seq) for job_id in job_ids for seq in range(100)]
    for child in team.held:
        team.commit(child, 100)
    return team.seams


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_four_children_share_few_neighbours(world: World, jobs: int) -> None:
    plain, forward = seams(world, jobs, forward=False), seams(world, jobs, forward=True)
    assert forward < plain / 2


def test_a_child_goes_on_after_its_own_and_steals_at_the_end(world: World) -> None:
    team = Team(world, [world.job(*[1] * 12)], ["a", "b"])
    team.admit(12)
    assert team.claim("a", 2) == [0, 1]
    assert team.claim("b", 2) == [2, 3]
    assert team.claim("a", 2) == [8, 9]  # b goes on with 4
    assert team.claim("b", 2) == [4, 5]
    assert team.claim("b", 2) == [6, 7]
    assert team.claim("b", 1) == [11]  # a goes on with 10
    assert team.claim("a", 2) == [10]
    assert team.claim("a", 2) == []


def test_another_job_keeps_its_turn_and_an_urgent_one_goes_first(world: World) -> None:
    first, other = world.job(*[1] * 8, name="first"), world.job(*[1] * 8, name="other")
    team = Team(world, [first, other], ["a", "b"])
    team.admit(8)
    order = "SELECT job_id FROM batches WHERE state = 'queued' ORDER BY rank, id"
    team.claim("a", 2)
    team.claim("b", 2)
    with world.ledger.transaction() as connection:
        before = connection.exec_driver_sql(order).scalars().all()
        who = Claimant("a", "default", world.specs[first].engine_key, "function", "1")
        neighbours.bring_forward(connection, who, team.last["a"], 2)
        moved = connection.exec_driver_sql(
            "SELECT seq FROM batches WHERE state = 'queued' AND job_id = %s ORDER BY rank", (first,)
        ).scalars()
        assert list(moved) != [2, 3, 4, 5, 6, 7]
        assert connection.exec_driver_sql(order).scalars().all() == before
    urgent = world.job(1, name="urgent", priority=5)
    world.admit(urgent)
    team.claim("a", 1)
    assert team.held["a"][-1].job_id == urgent


def test_what_somebody_has_locked_or_must_run_alone_stays(world: World, frozen: Connection) -> None:
    job_id = world.job(*[1] * 8)
    team = Team(world, [job_id], ["a", "b"])
    team.admit(8)
    team.claim("a", 1)
    team.claim("b", 1)
    world.do("UPDATE batches SET losses = 2 WHERE seq = 7")
    frozen.exec_driver_sql("SELECT FROM batches WHERE seq IN (2, 5) FOR UPDATE")
    ranks = dict(world.ask("SELECT seq, rank FROM batches WHERE state = 'queued'"))
    assert team.claim("a", 2) == [4, 3]  # it would have been 4 and 5
    after = dict(world.ask("SELECT seq, rank FROM batches WHERE state = 'queued'"))
    assert {seq: after[seq] for seq in (2, 5, 7)} == {seq: ranks[seq] for seq in (2, 5, 7)}


def test_a_batch_that_failed_once_keeps_its_turn(world: World) -> None:
    team = Team(world, [world.job(*[1] * 60)], ["a"])
    order: list[int] = []
    while len(team.had) < 60 or order.count(2) < 2:
        team.admit(16)
        order += team.claim("a", 4)
        failed = [lease for lease in team.held["a"] if lease.seq == 2 and lease.attempt == 1]
        for lease in failed:
            team.held["a"].remove(lease)
            world.fail(lease)
            world.do("UPDATE batches SET not_before = NULL")
        team.commit("a", 4)
    second = order.index(2, order.index(2) + 1)
    assert second <= 2 + 4 + 16 + 4  # those that were queued or claimed before, and one claim


def test_what_a_child_that_left_would_have_run_keeps_its_turn(world: World) -> None:
    team = Team(world, [world.job(*[1] * 60)], ["a", "b"])
    team.admit(16)
    assert team.claim("a", 2) == [0, 1]
    assert team.claim("b", 2) == [2, 3]
    assert team.claim("a", 2) == [10, 11]  # b goes on with 4
    team.commit("b", 2)  # and leaves
    order: list[int] = []
    while len(order) < 54:
        team.admit(16)
        order += team.claim("a", 2)
        team.commit("a", 2)
    assert sorted(order) == [*range(4, 10), *range(12, 60)]
    assert order.index(9) < 16
