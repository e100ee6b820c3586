"""The end of a job in the ledger: rows that have not begun go from a busy child to idle ones."""

import pytest

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import LeaseLost
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import commits, handovers, leasing, splits
from nightshift.common.ledger.batches.handovers import Siblings
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import audit
from nightshift.common.states import JobState
from tests.support.world import World, child_of, make_ready, part_of

PIECES = (RowRanges.of((4, 7)), RowRanges.of((7, 10)))


@pytest.fixture
def world(ledger: Ledger) -> World:
    return World(ledger)


def hand_over(world: World, lease: Lease, *pieces: RowRanges) -> Lease | None:
    kept: Lease | None = world.run(handovers.hand_over, lease, pieces or PIECES, 30)
    return kept


def sound(world: World, job_id: int) -> None:
    """The ledger agrees with itself: rows, counters, attempts."""
    covered = world.run(audit.coverage, job_id)
    assert covered.rows == covered.distinct_rows == covered.stop
    assert covered.ranges == 1
    assert world.run(audit.miscounted, job_id) == {}
    assert world.run(audit.broken_attempts, job_id) == []


def test_the_owner_goes_on_with_the_rows_that_are_left_and_siblings_take_the_pieces(
    world: World,
) -> None:
    job_id = world.job(10)
    lease = world.lease(job_id)
    kept = hand_over(world, lease)
    assert kept is not None
    assert list(kept.todo) == [0, 1, 2, 3]
    sound(world, job_id)
    assert world.states(job_id) == ["split", "pending", "pending", "leased"]

    world.admit(job_id)
    taken = world.claim(job_id, owner="worker-2")
    assert [list(each.todo) for each in taken] == [[4, 5, 6], [7, 8, 9]]
    sound(world, job_id)
    for each in (kept, *taken):
        world.commit(each)
    sound(world, job_id)
    assert world.rows(job_id) == (10, 0)
    assert world.finish(job_id) == JobState.COMPLETED
    charged = world.ask("SELECT sum(failures) AS f, sum(losses) AS l FROM batches")[0]
    assert (charged.f, charged.l) == (0, 0)


def test_a_batch_of_which_no_row_has_begun_goes_as_a_whole(world: World) -> None:
    job_id = world.job(6)
    lease = world.lease(job_id)
    assert hand_over(world, lease, *lease.todo.halves()) is None
    assert world.states(job_id) == ["split", "pending", "pending"]
    sound(world, job_id)


def test_a_handover_whose_commit_was_not_answered_may_be_said_again(world: World) -> None:
    job_id = world.job(10)
    lease = world.lease(job_id)
    kept = hand_over(world, lease)
    assert hand_over(world, lease) == kept
    sound(world, job_id)


def test_a_commit_under_the_lease_of_before_is_refused_and_was_never_committed(
    world: World,
) -> None:
    """Else a part that nobody names would be moved beside the others."""
    job_id = world.job(10)
    lease = world.lease(job_id)
    hand_over(world, lease)
    with pytest.raises(LeaseLost):
        world.commit(lease)
    assert not world.run(commits.is_committed, lease)


def test_a_lease_that_is_lost_or_of_a_job_that_is_over_hands_nothing_over(world: World) -> None:
    lost, over = world.job(10), world.job(10, name="over")
    leases = [world.lease(lost, seconds=0.001), world.lease(over)]
    while not world.reap():
        pass
    world.run(jobs.cancel, over)
    for lease in leases:
        with pytest.raises(LeaseLost):
            hand_over(world, lease)
    sound(world, lost)
    sound(world, over)


def test_a_paused_job_keeps_what_was_handed_over(world: World) -> None:
    job_id = world.job(10)
    lease = world.lease(job_id)
    world.run(jobs.pause, job_id, "by hand")
    kept = hand_over(world, lease)
    assert kept is not None
    world.commit(kept)
    assert world.admit(job_id) == 0
    sound(world, job_id)


def test_a_kept_batch_can_be_split_by_a_drain_or_lost_like_any_other(world: World) -> None:
    drained, lost = world.job(10), world.job(10, name="lost")
    kept = hand_over(world, world.lease(drained))
    assert kept is not None
    world.run(splits.split, kept, RowRanges.of((0, 2)), part_of(kept))
    sound(world, drained)
    kept = hand_over(world, world.lease(lost))
    assert kept is not None
    world.run(leasing.lose, kept, "gone")
    sound(world, lost)
    assert world.ask("SELECT sum(losses) AS l FROM batches")[0].l == 1


def test_a_child_sees_idle_siblings_and_what_waits_for_them(world: World) -> None:
    job_id = world.job(5, 5, 5, limits={"max_parallel": 4})
    spec = world.specs[job_id]
    who = Claimant("child-1", "default", spec.engine_key, "function", "1")
    for number in (1, 2, 3):
        make_ready(world, child_of(spec, number))

    def seen() -> Siblings:
        found: Siblings = world.run(handovers.siblings, who, 30)
        return found

    assert seen() == Siblings(idle=2, busy=0, waiting=3, room={job_id: 4})
    world.admit(job_id, 2)
    assert seen().waiting == 3
    world.claim(job_id, owner="child-1", most=1)
    world.claim(job_id, owner="child-2", most=1)
    assert seen() == Siblings(idle=1, busy=1, waiting=1, room={job_id: 2})
    world.run(lambda connection: workers.beat(connection, "child-3", "draining"))
    assert seen().idle == 0
    world.run(jobs.pause, job_id, "by hand")
    assert seen().room == {}
    assert seen().waiting == 0
