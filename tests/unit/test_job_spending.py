"""A child's time is shared between the jobs that it works for, and counted once."""

import pytest

from nightshift.common.ledger.jobs.spending import Spent
from nightshift.worker.telemetry.job_spending import JobSpending


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_overlapping_batches_count_a_second_once(clock: Clock) -> None:
    spent = JobSpending(clock)
    spent.hold(1, 10)
    clock.now += 2
    spent.hold(1, 10)
    clock.now += 3
    spent.release(1, 10)
    spent.release(1, 10)
    assert spent.take(1) == 5_000_000


def test_time_without_a_batch_counts_for_nobody(clock: Clock) -> None:
    spent = JobSpending(clock)
    clock.now += 60
    spent.hold(1, 1)
    clock.now += 1
    spent.release(1, 1)
    clock.now += 60
    assert spent.take(1) == 1_000_000


def test_jobs_that_are_held_at_once_share_the_time_by_their_rows(clock: Clock) -> None:
    spent = JobSpending(clock)
    spent.hold(1, 30)
    spent.hold(2, 10)
    clock.now += 4
    assert spent.take(1) == 3_000_000
    assert spent.take(2) == 1_000_000
    spent.release(1, 30)
    clock.now += 4
    assert (spent.take(1), spent.take(2)) == (0, 4_000_000)


def test_what_is_taken_is_counted_by_one_commit_and_what_is_given_back_by_the_next(
    clock: Clock,
) -> None:
    spent = JobSpending(clock)
    spent.hold(1, 1)
    clock.now += 1.5
    taken = spent.take(1)
    assert spent.take(1) == 0
    spent.give_back(1, taken)
    clock.now += 1
    assert spent.take(1) == 2_500_000


def test_totals_grow_by_outcomes_and_by_time_whatever_commits_account_for(clock: Clock) -> None:
    spent = JobSpending(clock)
    spent.hold(1, 10)
    spent.run(1, 3, 30, 6)
    clock.now += 2
    spent.take(1)
    spent.run(1)
    clock.now += 1
    assert spent.totals() == spent.totals(1) == [Spent(1, 3_000_000, 4, 30, 6)]
    spent.release(1, 10)
    clock.now += 60
    assert spent.totals(1) == [Spent(1, 3_000_000, 4, 30, 6)]
