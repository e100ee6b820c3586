"""Control of a job that many children work on: it takes effect at once, and costs no multixacts."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg
import pytest

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger import Ledger, dispatch, jobs, spending
from nightshift.common.ledger.batches import leasing, splits
from nightshift.common.ledger.batches.records import Lease
from nightshift.common.ledger.connection import Connection
from nightshift.common.states import JobState
from tests.support.fleet import commit_one, wait_until
from tests.support.world import World, part_of

COMMITTERS = 32
COMMIT_SECONDS = 0.01
EFFECT_SECONDS = 1.0
"""Within this time control takes effect (DESIGN section 11)."""

Control = Callable[[Connection, int], object]


@pytest.fixture
def crowd(database_url: str) -> Iterator[Ledger]:
    """A connection for each of many children."""
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
    moved_on: threading.Event = field(default_factory=threading.Event)
    commits: list[int] = field(default_factory=lambda: [0] * COMMITTERS)
    taken: int = 0
    too_late: list[str] = field(default_factory=list)

    def commit(self, number: int) -> None:
        """A commit of 10 ms, again and again: rolled back, so that its lease holds the next time."""
        lease = self.leases[number]
        while not self.calm.is_set():
            with self.world.ledger.transaction() as connection:
                commit_one(connection, lease, part_of(lease))
                time.sleep(COMMIT_SECONDS)
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

    def admit(self) -> None:
        while not self.calm.is_set():
            late = self.moved_on.is_set()
            if self.world.admit(self.job, 5) and late:
                self.too_late.append("admission")


@pytest.mark.parametrize("control", [jobs.pause, jobs.cancel, fail, hold])
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
            wait_until(lambda: min(storm.commits) > 2 and storm.taken, what="everybody at work")
            [called] = world.ask("SELECT clock_timestamp() AS at")
            world.run(control, job)
            storm.moved_on.set()
            committed = list(storm.commits)
            time.sleep(1.5 * EFFECT_SECONDS)
            state = world.run(jobs.get, job).state
        finally:
            storm.calm.set()
        if not state.over:
            # Whoever had a lease goes on to its commit.
            for done in working:
                done.result(60)
            assert all(now > then for now, then in zip(storm.commits, committed, strict=True))
    assert state is not JobState.RUNNING
    assert storm.too_late == []
    late = f"claimed_at > '{called.at}'::timestamptz + interval '{EFFECT_SECONDS} s'"
    assert world.ask(f"SELECT count(*) AS n FROM attempts WHERE {late}")[0].n == 0


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
