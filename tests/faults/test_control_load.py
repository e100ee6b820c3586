"""Control of a job that many children work on: it takes effect at once, and costs no multixacts."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
import pytest

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch, leasing, splits
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.states import JobState
from tests.support.fleet import commit_one, wait_until
from tests.support.world import World, part_of

COMMITTERS = 32

Control = Callable[[Connection, int], object]


@pytest.fixture
def crowd(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A connection for each of many children; they may stand in a transaction for half a minute."""
    idle = "nightshift.common.ledger.connection.IDLE_IN_TRANSACTION_SECONDS"
    monkeypatch.setattr(idle, 60)
    ledger = Ledger(database_url, connections=COMMITTERS + 8)
    yield ledger
    ledger.close()


def fail(connection: Connection, job: int) -> None:
    jobs.fail(connection, job, "no engine")


def hold(connection: Connection, job: int) -> None:
    assert spending.hold(connection, job, "the money is spent")


@dataclass
class Storm:
    """Committers, claimers and an admission on one job, until `calm`; each has what it may not wait
    for taken by the others all the time.
    """

    world: World
    job: int
    leases: list[Lease]
    calm: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    inside: set[int] = field(default_factory=set)
    looks: Counter[str] = field(default_factory=Counter)
    moved_on: threading.Event = field(default_factory=threading.Event)
    commits: list[int] = field(default_factory=lambda: [0] * COMMITTERS)
    taken: int = 0
    too_late: list[str] = field(default_factory=list)

    def commit(self, number: int) -> None:
        """A commit, again and again: rolled back, so that its lease holds the next time. While they
        may not `go_on`, committers stand in the middle of it.
        """
        lease = self.leases[number]
        while not self.calm.is_set():
            with self.world.ledger.transaction() as connection:
                commit_one(connection, lease, part_of(lease))
                self.inside.add(number)
                self.go_on.wait(100)
                self.inside.discard(number)
                connection.rollback()
            self.commits[number] += 1

    def claim(self) -> None:
        while not self.calm.is_set():
            late = self.moved_on.is_set()
            for lease in self.world.claim(self.job, owner="claimer", most=1):
                self.taken += 1
                if late:
                    self.too_late.append("claim")
                self.world.run(leasing.release, [lease])
            self.looks["claim"] += late

    def admit(self) -> None:
        while not self.calm.is_set():
            late = self.moved_on.is_set()
            if self.world.admit(self.job, 5) and late:
                self.too_late.append("admission")
            self.looks["admission"] += late


@pytest.mark.parametrize(
    "control",
    [
        jobs.pause,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (jobs.cancel, fail, hold)),
    ],
)
def test_control_takes_effect_at_once_while_32_committers_work_on_the_job(
    control: Control, crowd: Ledger
) -> None:
    world = World(crowd)
    job = world.job(*[1] * (COMMITTERS + 50))
    world.admit(job, COMMITTERS)
    storm = Storm(world, job, world.claim(job, seconds=600))
    acts = [*(lambda n=n: storm.commit(n) for n in range(COMMITTERS)), storm.claim, storm.admit]
    with ThreadPoolExecutor(len(acts)) as threads:
        working = [threads.submit(act) for act in acts]
        try:
            storm.go_on.set()
            wait_until(lambda: min(storm.commits) > 2 and storm.taken, what="everybody at work")
            storm.go_on.clear()
            wait_until(lambda: len(storm.inside) == COMMITTERS, what="everybody in a commit")
            committed = list(storm.commits)
            world.run(control, job)
            storm.moved_on.set()
            state = world.run(jobs.get, job).state
            assert len(storm.inside) == COMMITTERS, "the order waited for commits"
            looks = storm.looks
            wait_until(lambda: min(looks["claim"], looks["admission"]) > 2, what="later looks")
            storm.go_on.set()
            if not state.over:
                # Whoever had a lease goes on to its commit.
                wait_until(
                    lambda: all(
                        now > then + 1 for now, then in zip(storm.commits, committed, strict=True)
                    ),
                    what="a commit of everybody",
                )
        finally:
            storm.calm.set()
            storm.go_on.set()
        if not state.over:
            for done in working:
                done.result(60)
    assert state is not JobState.RUNNING
    assert storm.too_late == []


def next_multixact(database_url: str) -> str:
    """The number of the next multixact of this Postgres, as its control file has it."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT next_multixact_id::text FROM pg_control_checkpoint()")
        [number] = found.fetchone() or [""]
    return str(number)


def test_a_busy_job_makes_no_multixacts(crowd: Ledger, database_url: str) -> None:
    """Everything that work on a job does is open at the same time, on a connection each."""
    world = World(crowd)
    job = world.job(*[2] * 60)
    world.admit(job, 40)
    # A child each: the row of what a child spends is its own.
    leases = iter([world.claim(job, owner=f"w{n}", most=1)[0] for n in range(40)])
    free = next(leases)
    world.run(leasing.release, [free])
    before = next_multixact(database_url)
    with ExitStack() as opened:

        def begin() -> Connection:
            return opened.enter_context(crowd.transaction())

        # First, or an admission would take the batch.
        assert splits.halve(begin(), free.batch_id)
        for _ in range(8):
            for lease in (next(leases), next(leases)):
                commit_one(begin(), lease, part_of(lease))
            dispatch.admit(begin(), job, 1, 1)
            lease = next(leases)
            leasing.renew(begin(), lease.owner, [(lease.batch_id, lease.attempt)], 30)
        drained = next(leases)
        first = drained.todo.ranges[0][0]
        splits.split(begin(), drained, RowRanges.of((first, first + 1)), part_of(drained))
    for control in (jobs.pause, jobs.resume):
        world.run(control, job)
        world.commit(next(leases))
    assert next_multixact(database_url) == before
