"""Admission: priority, fair share, max_parallel, and never more than twice the window."""

from dataclasses import replace

import pytest

from nightshift.common.allocation.deadlines import Work
from nightshift.common.ledger.batches.dispatch import Capacity, OpenJob
from nightshift.common.settings import Settings
from nightshift.producer.reaper.admission import LEAST_QUEUED, Hints, Queue, decide

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
OTHER = replace(JOB, id=2)
HALF_FULL = replace(JOB, queued=15, rows_queued=150)
FULL = replace(JOB, queued=20, rows_queued=200)
LIMITED = replace(JOB, max_parallel=6, queued=2, rows_queued=20, leased=3, rows_leased=30)

WINDOW = Capacity("default", "k", children=2, window_rows=100)
HUGE_WINDOW = replace(WINDOW, window_rows=10**9)


@pytest.mark.parametrize(
    ("jobs", "capacities", "admitted"),
    [
        pytest.param([JOB], [WINDOW], {1: 20}, id="twice the living window is queued"),
        pytest.param([HALF_FULL], [WINDOW], {1: 5}, id="what is queued already counts"),
        pytest.param([FULL], [WINDOW], {}, id="a full queue gets nothing"),
        pytest.param([JOB], [], {1: LEAST_QUEUED}, id="a few are queued before a child lives"),
        pytest.param(
            [replace(JOB, batch_rows=100_000)],
            [WINDOW],
            {1: LEAST_QUEUED},
            id="large batches are never fewer than the least",
        ),
        pytest.param([JOB, OTHER], [WINDOW], {1: 10, 2: 10}, id="equal priorities share evenly"),
        pytest.param(
            [replace(JOB, leased=10, rows_leased=100), OTHER],
            [WINDOW],
            {1: 5, 2: 15},
            id="a job with rows in flight waits until the other has caught up",
        ),
        pytest.param(
            [FULL, replace(OTHER, priority=5, pending=3)],
            [WINDOW],
            {2: 3},
            id="an urgent job passes a queue that is full of others",
        ),
        pytest.param(
            [replace(JOB, weight=3), OTHER],
            [WINDOW],
            {1: 15, 2: 5},
            id="a queue is shared by weight",
        ),
        pytest.param(
            [JOB, OTHER, replace(JOB, id=3, tenant="acme")],
            [WINDOW],
            {1: 5, 2: 5, 3: 10},
            id="tenants share a queue before their jobs do",
        ),
        pytest.param(
            [JOB, OTHER, replace(JOB, id=3, tenant="acme", tenant_weight=3)],
            [WINDOW],
            {1: 3, 2: 2, 3: 15},
            id="tenants share a queue by weight",
        ),
        pytest.param(
            [replace(JOB, tenant_rows=100), replace(JOB, id=3, tenant="acme")],
            [WINDOW],
            {1: 5, 3: 15},
            id="rows in flight of jobs with nothing to admit count for their tenant",
        ),
        pytest.param(
            [replace(JOB, pending=2), replace(JOB, id=3, tenant="acme")],
            [WINDOW],
            {1: 2, 3: 18},
            id="what a tenant cannot use is for the others",
        ),
        pytest.param([LIMITED], [WINDOW], {1: 1}, id="max_parallel counts queued and leased"),
        pytest.param(
            [replace(LIMITED, leased=9)], [WINDOW], {}, id="a job above max_parallel gets nothing"
        ),
        pytest.param([replace(JOB, pending=2)], [WINDOW], {1: 2}, id="no more than is pending"),
        pytest.param(
            [JOB, replace(OTHER, engine_key="other")],
            [WINDOW],
            {1: 20, 2: LEAST_QUEUED},
            id="queues do not take from each other",
        ),
    ],
)
def test_what_is_admitted(
    jobs: list[OpenJob], capacities: list[Capacity], admitted: dict[int, int]
) -> None:
    assert decide(jobs, capacities) == admitted


HOUR_LEFT = Work(rows=36_000, seconds_left=3600, slots=1, most_slots=40, rate=10.0)
"""A job that needs 1.1 slots."""


@pytest.mark.parametrize(
    ("work", "admitted"),
    [
        pytest.param(HOUR_LEFT, {1: 15, 2: 5}, id="what it needs first, then the others"),
        pytest.param(replace(HOUR_LEFT, rows=72_000), {1: 20}, id="a late job comes first"),
        pytest.param(
            replace(HOUR_LEFT, rows=45_000), {1: 20}, id="until as much is in flight as it needs"
        ),
        pytest.param(
            replace(HOUR_LEFT, rows=72_000, rate=None), {1: 10, 2: 10}, id="no rate, no deadline"
        ),
    ],
)
def test_batches_of_a_late_job_are_admitted_before_others_of_its_engine(
    work: Work, admitted: dict[int, int]
) -> None:
    assert decide([JOB, OTHER], [WINDOW], works={1: work}) == admitted


def test_a_late_job_leaves_what_it_does_not_need() -> None:
    """It needs 1.39 children, with 150 rows in flight each: 208 rows."""
    ahead = replace(JOB, queued=10, rows_queued=100, leased=9, rows_leased=90)
    work = replace(HOUR_LEFT, rows=45_000)
    assert decide([ahead, OTHER], [WINDOW], works={1: work}) == {1: 2, 2: 8}


def test_the_earliest_deadline_is_admitted_first() -> None:
    work = replace(HOUR_LEFT, rows=72_000)
    later = replace(work, seconds_left=3700)
    assert decide([JOB, OTHER], [WINDOW], works={1: later, 2: work}) == {2: 20}
    urgent = replace(OTHER, id=3, priority=1, pending=5)
    assert decide([JOB, urgent], [WINDOW], works={1: work}) == {3: 5, 1: 15}


def test_a_round_stays_short() -> None:
    assert decide([replace(JOB, pending=10**6)], [HUGE_WINDOW], most=500) == {1: 500}


def test_a_queue_that_could_take_a_whole_round_starves_no_other() -> None:
    flood = replace(JOB, pending=10**6)
    others = [replace(JOB, id=n, pool=f"pool {n}", pending=3) for n in (2, 3)]
    admitted = decide([flood, *others], [HUGE_WINDOW], most=100)
    assert admitted == {1: 94, 2: 3, 3: 3}


def test_more_queues_than_a_round_has_batches_share_the_round() -> None:
    jobs = [replace(JOB, id=n, pool=f"pool {n}", queued=n % 3) for n in range(1, 6)]
    assert decide(jobs, [], most=3) == {3: 1, 1: 1, 4: 1}


@pytest.mark.parametrize(
    ("queued", "children", "hints"),
    [
        pytest.param(50_000, 1000, 1000, id="one for each child"),
        pytest.param(3, 1000, 3, id="no more than batches"),
        pytest.param(16, 0, 1, id="one for a child that comes"),
        pytest.param(0, 8, 0, id="none without a batch"),
    ],
)
def test_how_many_hints_wait(queued: int, children: int, hints: int) -> None:
    assert Queue("default", "k", queued, admitted=0, children=children).hints == hints


class SlowBroker:
    """Looks at queues, each look a second of a clock of its own, and has every hint already."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.looked: list[str] = []

    def top_up(self, pool: str, engine_key: str, target: int, most: int, until: float) -> int:
        self.looked.append(pool)
        self.seconds += 1.0
        return 0


def test_a_round_looks_at_slow_queues_for_a_short_time_and_begins_with_another_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SlowBroker()
    hints = Hints(Settings(broker_url="redis://127.0.0.1:1/0"), clock=lambda: broker.seconds)
    monkeypatch.setattr(hints, "_announcer", broker)
    queues = [Queue(pool, "k", 16, admitted=16, children=1) for pool in "abcd"]
    for rounds in range(1, 5):
        hints.begin_round()
        hints.announce(queues)
        hints.announce(queues)
        assert len(broker.looked) == rounds, "one time for both announcements of a round"
    assert sorted(broker.looked) == list("abcd")
