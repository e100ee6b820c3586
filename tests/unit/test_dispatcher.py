"""Admission: priority, fair share, max_parallel, and never more than twice the window."""

from dataclasses import replace

from nightshift.common.ledger.dispatch import Capacity, OpenJob
from nightshift.producer.reaper.admission import LEAST_QUEUED, plan

JOB = OpenJob(
    id=1,
    pool="default",
    engine_key="k",
    priority=0,
    max_parallel=None,
    pending=1000,
    queued=0,
    leased=0,
    rows_queued=0,
    rows_leased=0,
    batch_rows=10,
)
CAPACITY = Capacity("default", "k", children=2, window_rows=100)


def test_twice_the_living_window_is_kept_queued() -> None:
    assert plan([JOB], [CAPACITY]) == {1: 20}
    assert plan([replace(JOB, queued=15, rows_queued=150)], [CAPACITY]) == {1: 5}
    assert plan([replace(JOB, queued=20, rows_queued=200)], [CAPACITY]) == {}


def test_a_few_batches_are_queued_before_the_first_child_lives() -> None:
    assert plan([JOB], []) == {1: LEAST_QUEUED}


def test_large_batches_are_never_fewer_than_the_least() -> None:
    assert plan([replace(JOB, batch_rows=100_000)], [CAPACITY]) == {1: LEAST_QUEUED}


def test_jobs_of_equal_priority_share_evenly() -> None:
    shares = plan([JOB, replace(JOB, id=2)], [CAPACITY])
    assert shares == {1: 10, 2: 10}


def test_a_job_with_rows_in_flight_waits_for_the_other_to_catch_up() -> None:
    busy = replace(JOB, leased=10, rows_leased=100)
    assert plan([busy, replace(JOB, id=2)], [CAPACITY]) == {1: 5, 2: 15}


def test_an_urgent_job_is_admitted_past_a_full_queue_of_others() -> None:
    full = replace(JOB, queued=20, rows_queued=200)
    urgent = replace(JOB, id=2, priority=5, pending=3)
    assert plan([full, urgent], [CAPACITY]) == {2: 3}


def test_max_parallel_counts_queued_and_leased() -> None:
    held = replace(JOB, max_parallel=6, queued=2, rows_queued=20, leased=3, rows_leased=30)
    assert plan([held], [CAPACITY]) == {1: 1}
    assert plan([replace(held, leased=9)], [CAPACITY]) == {}


def test_no_more_is_admitted_than_is_pending() -> None:
    assert plan([replace(JOB, pending=2)], [CAPACITY]) == {1: 2}


def test_a_round_stays_short() -> None:
    wide = replace(CAPACITY, window_rows=10**9)
    assert plan([replace(JOB, pending=10**6)], [wide], most=500) == {1: 500}


def test_queues_do_not_take_from_each_other() -> None:
    other = replace(JOB, id=2, engine_key="other")
    assert plan([JOB, other], [CAPACITY]) == {1: 20, 2: LEAST_QUEUED}
