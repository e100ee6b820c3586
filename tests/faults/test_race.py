"""Two owners and the reaper race on one batch: whatever the interleaving, one winner."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from nightshift.common.errors import LeaseLost, Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, commits
from nightshift.common.ledger.batches.records import Claimant, Lease
from tests.support.world import World

LONGEST_PAUSE_SECONDS = 0.004


class Race:
    """One batch, whose first owner's lease has run out when the three start.

    In a third of the races the first owner has committed before the others begin, in a third
    somebody else has claimed the batch before the first owner commits: each of the two wins some.
    """

    def __init__(self, worlds: list[World], job: int, chance: random.Random) -> None:
        self.worlds = worlds
        self.job = job
        self.pauses = [
            [chance.uniform(0, LONGEST_PAUSE_SECONDS) for _ in range(3)] for _ in range(3)
        ]
        worlds[0].admit(job, 1)
        (self.first,) = worlds[0].claim(job, owner="first", seconds=0.001)
        self.order = chance.choice(["free", "old first", "new first"])
        self.committed, self.claimed = threading.Event(), threading.Event()
        # Half of the time it is the same child that claims the batch again.
        self.next_owner = chance.choice(["first", "second"])
        self.won: list[tuple[str, int]] = []
        self.lost: list[str] = []

    def run(self, threads: ThreadPoolExecutor) -> None:
        line = threading.Barrier(3)

        def started(play: Callable[[World, list[float]], None], number: int) -> None:
            line.wait(60)
            play(self.worlds[number], self.pauses[number])

        plays = (self._old_owner, self._new_owner, self._reaper)
        for done in [threads.submit(started, play, at) for at, play in enumerate(plays)]:
            done.result(60)
        self._end()

    def _old_owner(self, world: World, pauses: list[float]) -> None:
        if self.order == "new first":
            self.claimed.wait(60)
        elif self.order == "free":
            time.sleep(2 * sum(pauses))  # the other two need several steps
        self._commit(world, self.first)
        self.committed.set()

    def _new_owner(self, world: World, pauses: list[float]) -> None:
        if self.order == "old first":
            self.committed.wait(60)
        for pause in self._steps(pauses):
            time.sleep(pause)
            for lease in world.claim(self.job, owner=self.next_owner):
                self.claimed.set()
                self._commit(world, lease)

    def _steps(self, pauses: list[float]) -> Iterator[float]:
        """So many steps, and more where the first owner waits for a claim."""
        yield from pauses
        while self.order == "new first" and not self.claimed.is_set():
            yield LONGEST_PAUSE_SECONDS

    def _reaper(self, world: World, pauses: list[float]) -> None:
        if self.order == "old first":
            self.committed.wait(60)
        for pause in self._steps(pauses):
            time.sleep(pause)
            world.reap()
            # One batch: whatever is pending behind it belongs to later rounds.
            with world.ledger.transaction() as connection:
                connection.exec_driver_sql(
                    "UPDATE batches SET state = 'queued', rank = 1 "
                    f"WHERE id = {self.first.batch_id} AND state = 'pending'"
                )

    def _commit(self, world: World, lease: Lease) -> None:
        for _ in range(20):
            try:
                world.commit(lease, name=f"part-{lease.owner}-{lease.attempt}")
            except LeaseLost:
                with world.ledger.transaction() as connection:
                    assert not commits.is_committed(connection, lease)
                self.lost.append(lease.owner)
            except Retryable:  # a deadlock or a lock that was not to be had: tried again
                continue
            else:
                self.won.append((lease.owner, lease.attempt))
            return
        raise AssertionError("the commit was never decided")

    def _end(self) -> None:
        """Whoever is left finishes it: nothing may stand in the way."""
        world = self.worlds[0]
        for _ in range(100):
            if self.won:
                return
            self._reaper(world, [0.002])
            for lease in world.claim(self.job, owner="third"):
                self._commit(world, lease)
        raise AssertionError("nobody could finish the batch")


@pytest.mark.timeout(1200)
def test_one_winner_whatever_the_interleaving(
    second_ledger: Callable[[], Ledger], database_url: str, minutes: float, chance: random.Random
) -> None:
    rounds = 10_000 if minutes else 250
    worlds = [World(second_ledger()) for _ in range(3)]
    job = worlds[0].job(*[2] * rounds)
    for world in worlds[1:]:
        world.specs = worlds[0].specs
    winners: Counter[int] = Counter()
    expected: dict[int, tuple[str, int]] = {}
    with ThreadPoolExecutor(3) as threads:
        for _ in range(rounds):
            race = Race(worlds, job, chance)
            race.run(threads)
            assert len(race.won) == 1, (race.won, race.lost)
            expected[race.first.batch_id] = race.won[0]
            winners[race.won[0][1]] += 1
    # Both attempts have won a good share: the races had different ends.
    assert min(winners[1], winners[2]) > rounds / 20, winners
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT id, owner, attempt, part_name, state FROM batches ORDER BY id"
        ).fetchall()
        explained = connection.execute(
            "SELECT batch_id, worker_id, attempt FROM attempts WHERE outcome = 'done'"
        ).fetchall()
        rows_done = connection.execute("SELECT rows_done FROM job_progress").fetchone()
        open_ends = connection.execute(
            "SELECT count(*) FROM attempts WHERE ended_at IS NULL"
        ).fetchone()
    assert {row[0]: (row[1], row[2]) for row in found} == expected
    assert all(name == f"part-{owner}-{attempt}" for _, owner, attempt, name, _ in found)
    assert {row[4] for row in found} == {"done"}
    assert {row[0]: (row[1], row[2]) for row in explained} == expected
    assert len(explained) == rounds
    assert rows_done == (2 * rounds,)
    assert open_ends == (0,)


def test_a_commit_said_twice_does_not_undo_a_retry_in_between(
    second_ledger: Callable[[], Ledger],
) -> None:
    """Its answer was lost, the batch is run anew, and the same attempt commits once more."""
    world = World(second_ledger())
    job = world.job(2)
    lease = world.lease(job)
    world.commit(lease, errors=[0, 1])
    world.retry(job, failed=True)
    before = world.batch(lease.batch_id)
    with pytest.raises(LeaseLost):
        world.commit(lease)
    assert world.batch(lease.batch_id) == before


def test_a_claim_that_hangs_in_its_transaction_stops_nobody(
    second_ledger: Callable[[], Ledger],
) -> None:
    world, other = World(second_ledger()), World(second_ledger())
    job = world.job(1, 1, 1)
    other.specs = world.specs
    world.admit(job)
    who = Claimant("frozen", "default", world.specs[job].engine_key, "function", "1")
    with world.ledger.transaction() as connection:
        (held,) = claims.claim(
            connection, who, room_rows=1, max_batches=1, idle=True, woken="poll", lease_seconds=30
        )
        found = other.claim(job, owner="lively")
        assert len(found) == 2
        assert held.batch_id not in {lease.batch_id for lease in found}
