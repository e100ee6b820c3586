"""Control, commits, claims, splits and finish at the same time: whatever the interleaving, no row is
lost or doubled, and no part that the ledger names is removed.

The interleavings are those of docs/decisions/0015-control-without-locks-on-the-job.md. A statement
sees what was committed when it began. So each test keeps a transaction open, or a statement waiting,
while the job is moved on.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nightshift.common import failpoints, storage
from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import LeaseLost
from nightshift.common.failpoints import Moment
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, commits, dispatch, leasing, retries, splits
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.producer.reaper import finish
from nightshift.producer.verify.verify import verify
from tests.integration.test_look import BATCH, ROWS, WORKER, Work
from tests.support.fleet import commit_one, wait_until
from tests.support.world import World, part_of

Late = Future[frozenset[tuple[int, int]]]


class Scene:
    """Two jobs over real files. A commit of both of them can be held up at a batch of the first."""

    def __init__(self, ledger: Ledger, other: Ledger, folder: Path) -> None:
        self.ledger, self.other = ledger, other
        (folder / "first").mkdir()
        (folder / "second").mkdir()
        self.first = Work(ledger, folder / "first", name="first")
        # All of it: both jobs share a queue.
        self.held, *_ = self.first.claim()
        self.work = Work(ledger, folder / "second", name="second")
        # The first claim of a job writes its start, which takes the job's row.
        self.work.sql("UPDATE jobs SET started_at = now()")

    @contextmanager
    def late_commit(self, lease: Lease, part: Part) -> Iterator[Late]:
        """Inside, a COMMIT statement that has begun waits, for a batch of the first job, before it
        has locked the batch of `lease`. It goes on at the end.
        """
        beside = self.first.part(self.held, self.held.todo)

        def commit() -> frozenset[tuple[int, int]]:
            with self.other.transaction() as connection:
                return commits.commit(connection, [(self.held, beside), (lease, part)])

        with ThreadPoolExecutor(1) as threads:
            with self.other.transaction() as connection:
                leasing.renew(connection, WORKER, [key(self.held)], 60)
                late = threads.submit(commit)
                wait_until(self.somebody_waits, what="the late commit at a lock")
                yield late
                assert not late.done(), "the commit went on too early to show anything"
                connection.rollback()
            assert key(self.held) in late.result(60)

    def somebody_waits(self) -> bool:
        with self.ledger.transaction() as connection:
            waiting = connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted")
            return bool(waiting.all())

    def release(self, lease: Lease) -> None:
        with self.ledger.transaction() as connection:
            leasing.release(connection, [lease])

    def cancel(self) -> None:
        with self.ledger.transaction() as connection:
            jobs.cancel(connection, self.work.job_id)

    def finish(self) -> bool:
        """What a reaper does; True when the job is closed."""
        finish.finish(self.ledger, self.work.job_id)
        return self.work.job.closed_at is not None

    def is_there(self, part: Part) -> bool:
        return part_names.located(self.work.spec.output.uri, part.name) is not None

    def agrees(self) -> None:
        """Ledger and files agree, and every row is in one batch."""
        assert verify(self.ledger, self.work.job) == []


def key(lease: Lease) -> tuple[int, int]:
    return lease.batch_id, lease.attempt


@pytest.fixture
def scene(second_ledger: Callable[[], Ledger], tmp_path: Path) -> Scene:
    return Scene(second_ledger(), second_ledger(), tmp_path)


def test_a_commit_that_began_before_a_cancel_never_names_a_part_that_finish_removed(
    scene: Scene,
) -> None:
    """It has seen a running job, the job is finished meanwhile, and only then it gets its batch."""
    [lease] = scene.work.claim(1)
    part = scene.work.part(lease, lease.todo)
    with scene.late_commit(lease, part) as late:
        scene.release(lease)
        scene.cancel()
        assert scene.finish()
        assert not scene.is_there(part)
    assert key(lease) not in late.result(60)
    scene.agrees()


def test_a_commit_that_holds_the_batch_of_its_lease_when_the_job_is_cancelled_counts(
    scene: Scene,
) -> None:
    [lease] = scene.work.claim(1)
    part = scene.work.part(lease, lease.todo)
    with scene.other.transaction() as connection:
        commit_one(connection, lease, part)
        scene.cancel()
        assert not scene.finish(), "it is leased for everybody else"
    assert scene.finish()
    assert scene.is_there(part)
    scene.agrees()


def test_finish_waits_for_a_late_commit_that_holds_its_batch(scene: Scene) -> None:
    [lease] = scene.work.claim(1)
    part = scene.work.part(lease, lease.todo)
    scene.release(lease)
    with ThreadPoolExecutor(1) as threads:
        with scene.other.transaction() as connection:
            commit_one(connection, lease, part)
            scene.cancel()
            finishing = threads.submit(scene.finish)
            wait_until(scene.somebody_waits, what="finish at the batch")
            assert not finishing.done()
        assert finishing.result(60)
    assert scene.is_there(part)
    scene.agrees()


def test_a_claim_beside_a_cancel_leases_a_batch_that_nobody_can_commit(scene: Scene) -> None:
    work = scene.work
    with scene.ledger.transaction() as connection:
        dispatch.admit(connection, work.job_id, 2, dispatch.next_rank(connection))
    with scene.other.transaction() as connection:
        [lease] = claims.claim(
            connection,
            work.who,
            room_rows=1,
            max_batches=1,
            idle=True,
            woken="poll",
            lease_seconds=60,
        )
        scene.cancel()
        assert scene.finish(), "nobody waits for a claim"
    part = work.part(lease, lease.todo)
    with pytest.raises(LeaseLost), scene.ledger.transaction() as connection:
        commit_one(connection, lease, part)
    storage.delete(part_names.staged(work.spec.output.uri, part.name))
    scene.release(lease)
    scene.agrees()


def test_batches_leave_the_queue_of_a_paused_job_in_pieces_and_a_claim_keeps_what_it_holds(
    second_ledger: Callable[[], Ledger],
) -> None:
    world, other = World(second_ledger()), World(second_ledger())
    job = world.job(1, 1, 1, 1, 1)
    other.specs = world.specs
    world.commit(world.lease(job))
    who = Claimant("frozen", "default", world.specs[job].engine_key, "function", "1")
    with other.ledger.transaction() as connection:
        [lease] = claims.claim(
            connection, who, room_rows=1, max_batches=1, idle=True, woken="poll", lease_seconds=30
        )
        world.run(jobs.pause, job)
        assert [world.run(dispatch.unqueue, 2) for _ in range(2)] == [2, 1]
    assert world.claim(job) == []
    world.commit(lease)
    assert world.states(job) == ["done", "done", "pending", "pending", "pending"]


def test_a_split_that_is_under_way_when_its_job_is_cancelled_counts(scene: Scene) -> None:
    [lease] = scene.work.claim(1)
    first = lease.todo.ranges[0][0]
    rows = RowRanges.of((first, first + 2))
    part = scene.work.part(lease, rows)
    with scene.other.transaction() as connection:
        splits.split(connection, lease, rows, part)
        scene.cancel()
        assert not scene.finish(), "it is leased for everybody else"
    assert scene.finish()
    assert scene.is_there(part)
    scene.agrees()


def test_a_split_waits_for_no_cancel_and_counts_until_the_job_is_finished(
    second_ledger: Callable[[], Ledger],
) -> None:
    world, drain = World(second_ledger()), World(second_ledger())
    job = world.job(4, 4, 4)
    world.admit(job)
    early, late, last = world.claim(job)
    with world.ledger.transaction() as connection:
        jobs.cancel(connection, job)
        drain.run(splits.split, early, RowRanges.of((0, 2)), part_of(early))
    drain.run(splits.split, late, RowRanges.of((4, 6)), part_of(late))
    world.run(job_end.take, job, "reaper")
    with pytest.raises(LeaseLost):
        drain.run(splits.split, last, RowRanges.of((8, 10)), part_of(last))
    assert sorted(world.states(job)) == ["done"] * 2 + ["leased"] + ["pending"] * 2 + ["split"] * 2


@pytest.mark.parametrize("first", ["commit", "finish"])
def test_a_commit_that_began_after_a_cancel_counts_unless_finish_came_first(
    first: str, scene: Scene
) -> None:
    """The commit waits for its batch while a reaper finishes: it names no part that the reaper has removed."""
    [lease] = scene.work.claim(1)
    part = scene.work.part(lease, lease.todo)
    scene.cancel()
    with scene.late_commit(lease, part) as late:
        if first == "finish":
            scene.release(lease)
        assert scene.finish() is (first == "finish")
        assert scene.is_there(part) is (first == "commit")
    assert (key(lease) in late.result(60)) is (first == "commit")
    if first == "commit":
        assert scene.finish()
        assert scene.is_there(part)
    scene.agrees()


def test_a_halving_beside_a_cancel_keeps_every_row_in_one_batch(scene: Scene) -> None:
    before, after = scene.work.claim(2)
    for lease in (before, after):
        scene.release(lease)
    with ThreadPoolExecutor(1) as threads:
        with scene.other.transaction() as connection:
            assert splits.halve(connection, before.batch_id)
            scene.cancel()
            finishing = threads.submit(scene.finish)
            wait_until(scene.somebody_waits, what="finish at the batch")
        assert finishing.result(60)
    with scene.ledger.transaction() as connection:
        assert not splits.halve(connection, after.batch_id)
    scene.agrees()


def test_a_retry_in_the_middle_of_a_finish_leaves_no_part_that_is_named_and_removed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is over, retried, and cancelled again, all before finish lists the files. A commit of
    the retry has begun and its batch waits under its owner."""
    work = scene.work
    for lease in work.claim():
        work.commit(lease)
    found: list[tuple[Lease, Part, Late]] = []
    with ExitStack() as ended:

        def reopen(moment: Moment) -> None:
            if moment is not Moment.FINISHING or found:
                return
            with scene.ledger.transaction() as connection:
                retries.retry(connection, work.job_id, failed=True, dead=False)
            [lease] = work.claim(1)
            part = work.part(lease, lease.descriptor.rows)
            found.append((lease, part, ended.enter_context(scene.late_commit(lease, part))))
            scene.release(lease)
            scene.cancel()

        monkeypatch.setattr(failpoints, "observer", reopen)
        assert not scene.finish()
        [(lease, part, late)] = found
        assert scene.is_there(part)
        assert scene.finish()
    assert key(lease) not in late.result(60)
    assert not scene.is_there(part)
    scene.agrees()


@pytest.mark.parametrize("moment", [Moment.FINISHING, Moment.SWEEPING, Moment.CLOSING])
def test_a_retry_that_begins_and_ends_in_the_middle_of_a_finish_has_its_part_moved(
    moment: Moment, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker dies between COMMIT and move. All batches are over again when finish goes on."""
    work = scene.work
    for lease in work.claim():
        work.commit(lease)
    retried: list[Part] = []

    def retry(now: Moment) -> None:
        if now is not moment or retried:
            return
        with scene.ledger.transaction() as connection:
            retries.retry(connection, work.job_id, failed=True, dead=False)
        for lease in work.claim():
            part = work.part(lease, lease.descriptor.rows)
            with scene.ledger.transaction() as connection:
                commit_one(connection, lease, part)
            retried.append(part)

    monkeypatch.setattr(failpoints, "observer", retry)
    assert not scene.finish(), "the parts of the retry were not looked at"
    assert scene.finish()
    assert retried
    finished = {place.name for place in work.output.glob("part-*")}
    assert finished >= {part.name for part in retried}
    assert len(finished) == ROWS // BATCH, "each row is in one part"
    scene.agrees()
