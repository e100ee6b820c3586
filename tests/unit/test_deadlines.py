"""Deadlines: what a job needs, what a plan gives it, and what is to be expected of it."""

import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.common.allocation.deadlines import (
    STALE_SECONDS,
    Outlook,
    Standing,
    Work,
    is_beyond_reach,
    outlook,
    slots_needed,
    with_deadlines,
)
from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.allocation.plan import allocate, desired_slots
from nightshift.common.allocation.shares import key_shares, max_min

HOUR = 3600.0
LONG = 10_000.0

WORK = Work(rows=36_000, seconds_left=HOUR, slots=2, most_slots=40, load_seconds=60, rate=10.0)
"""An hour of one slot, which has two."""

LATE = replace(WORK, rows=144_000)
"""Two hours of the two slots."""

ON_TIME, NO_RATE = Outlook(Standing.ON_TIME), Outlook(Standing.NO_RATE)


@pytest.mark.parametrize(
    ("work", "needed", "expected"),
    [
        pytest.param(WORK, 36_000 / (10 * 3180), ON_TIME, id="on time with a slot to spare"),
        pytest.param(replace(WORK, rows=0), 0, ON_TIME, id="nothing left"),
        pytest.param(
            replace(WORK, slots=1), 1, ON_TIME, id="on time to the second: nothing more is needed"
        ),
        pytest.param(
            LATE,
            2 + (144_000 - 20 * 3180) / (10 * 3120),
            Outlook(Standing.LATE, HOUR, 3),
            id="late: slots that come load first",
        ),
        pytest.param(
            replace(LATE, slots=0),
            144_000 / (10 * 3120),
            Outlook(Standing.LATE, None, 5),
            id="late without a slot",
        ),
        pytest.param(
            replace(LATE, most_slots=3),
            3,
            Outlook(Standing.LATE, HOUR, None),
            id="late with all that max_parallel allows",
        ),
        pytest.param(
            replace(LATE, load_seconds=HOUR),
            40,
            Outlook(Standing.LATE, HOUR, None),
            id="a load that takes until the deadline helps nobody to keep it",
        ),
        pytest.param(
            replace(WORK, rows=600, seconds_left=10),
            2,
            Outlook(Standing.LATE, 20, None),
            id="a slot that would load until the job is done helps nobody",
        ),
        pytest.param(
            replace(LATE, seconds_left=-60),
            40,
            Outlook(Standing.LATE, 7260, None),
            id="the deadline has passed",
        ),
        pytest.param(
            replace(WORK, rows=0, seconds_left=-60, slots=0),
            0,
            Outlook(Standing.LATE, 60, None),
            id="the last row came after the deadline",
        ),
        pytest.param(replace(LATE, rate=None), 0, NO_RATE, id="no rate"),
        pytest.param(
            replace(LATE, measured_seconds_ago=STALE_SECONDS + 1),
            0,
            Outlook(Standing.STALE_RATE),
            id="a stale rate",
        ),
        pytest.param(
            replace(LATE, seconds_left=-60, rate=None), 0, NO_RATE, id="passed, and no rate"
        ),
    ],
)
def test_what_a_job_needs_and_what_is_expected_of_it(
    work: Work, needed: float, expected: Outlook
) -> None:
    assert slots_needed(work) == pytest.approx(needed)
    at_work = bool(work.rows and work.rate and work.slots)
    eta = work.rows / (work.rate * work.slots) if at_work and work.rate else None
    assert outlook(work, eta) == expected
    assert is_beyond_reach(work) is (
        expected.standing is Standing.LATE and expected.more_slots is None
    )


@pytest.mark.parametrize(
    ("work", "eta", "expected"),
    [
        (WORK, HOUR / 2, ON_TIME),
        (WORK, HOUR + 100, Outlook(Standing.LATE, 100, 1)),
        # The pace is not that of the slots: it tells when the job ends, and the slots how many more would help.
        (LATE, 1.5 * HOUR, Outlook(Standing.LATE, HOUR / 2, 2)),
        (replace(LATE, most_slots=3), 1.5 * HOUR, Outlook(Standing.LATE, HOUR / 2, None)),
        # Without a pace nobody knows by how much it will be late.
        (WORK, None, ON_TIME),
        (LATE, None, Outlook(Standing.LATE, None, 3)),
        (replace(LATE, rate=None), HOUR / 2, NO_RATE),
    ],
)
def test_the_pace_tells_when_a_job_ends(work: Work, eta: float | None, expected: Outlook) -> None:
    assert outlook(work, eta) == expected


@pytest.mark.parametrize("seconds_left", [-60, 1, 70, 130, 200, 400, 4000])
def test_the_reserve_at_most_doubles_what_is_needed(seconds_left: float) -> None:
    """A load in reserve would ask for a slot for each of 3,000 batches shortly before the deadline."""
    work = Work(30_000, seconds_left, slots=2, most_slots=3000, load_seconds=120, rate=50)
    wanted = desired_slots(
        with_deadlines([job("a", slots=60, most_slots=3000, job_id=1)], {1: work})
    )
    assert wanted["a"] <= (60 if is_beyond_reach(work) else 2 * 36)


def test_a_rate_that_moves_by_a_few_percent_changes_nothing_for_a_job_that_is_on_time() -> None:
    """What is needed keeps a reserve, and less than the reserve asks for no slot more."""
    slots = math.ceil(slots_needed(replace(LATE, slots=0)))
    for percent in range(-5, 6):
        work = replace(LATE, slots=slots, rate=10 * (1 + percent / 100))
        assert slots_needed(work) <= slots


def fleet(count: int, key: str | None = None, first: int = 0, held: float = LONG) -> list[Slot]:
    held = 0.0 if key is None else held
    return [Slot(f"s/{first + each:03}", key, held_seconds=held) for each in range(count)]


def job(
    key: str, need: float = 0.0, due: float = math.inf, slots: float = 1000.0, **facts: object
) -> JobDemand:
    given = {"job_id": ord(key[0]), "most_slots": int(slots), **facts}
    return JobDemand(
        engine_key=key,
        slots=slots,
        deadline_slots=need,
        due_seconds=due,
        **given,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("slots", "demand", "plan"),
    [
        pytest.param(
            fleet(8), [job("a", 6, HOUR), job("b")], {"a": 6, "b": 2}, id="a late job comes first"
        ),
        pytest.param(
            fleet(8), [job("a", 3, HOUR), job("b")], {"a": 4, "b": 4}, id="on time by its share"
        ),
        pytest.param(
            fleet(4), [job("a", 9, HOUR), job("b")], {"a": 4}, id="it needs every slot there is"
        ),
        pytest.param(
            fleet(4),
            [job("a", 3, 2 * HOUR), job("b", 3, HOUR)],
            {"a": 1, "b": 3},
            id="the earlier deadline first",
        ),
        pytest.param(
            fleet(4),
            [job("a", 9, HOUR, beyond_reach=True), job("b", 3, 2 * HOUR)],
            {"a": 1, "b": 3},
            id="a deadline that cannot be met makes no other job late",
        ),
        pytest.param(
            fleet(4),
            [job("a", 5, HOUR, exact_slots=4.5), job("b", 3, 2 * HOUR)],
            {"a": 1, "b": 3},
            id="nor one that these slots cannot meet",
        ),
        pytest.param(
            fleet(4),
            [job("a", 4.2, HOUR, exact_slots=3.8), job("b", 3, 2 * HOUR)],
            {"a": 4},
            id="which they can if only the reserve is beyond them",
        ),
        pytest.param(
            fleet(4),
            [job("a", 9, HOUR, beyond_reach=True), job("b")],
            {"a": 4},
            id="late as little as possible",
        ),
        pytest.param(
            fleet(8), [job("a", 6, HOUR, slots=2), job("b")], {"a": 2, "b": 6}, id="max_parallel"
        ),
        pytest.param(
            fleet(8),
            [job("a", 3, HOUR, slots=0.5, most_slots=9), job("b")],
            {"a": 3, "b": 5},
            id="slots beyond windows of rows, where the deadline needs them",
        ),
        pytest.param(
            fleet(8),
            [job("a", 8, HOUR, tenant="x"), job("b", tenant="y")],
            {"a": 4, "b": 4},
            id="a deadline takes nothing from another tenant",
        ),
        pytest.param(
            fleet(8),
            [job("a", 8, HOUR), job("b", priority=1, slots=6)],
            {"a": 2, "b": 6},
            id="nor from a job of a higher priority",
        ),
        pytest.param(
            fleet(8),
            [job("a", priority=1, slots=6), job("b", 2, HOUR), job("c")],
            {"a": 6, "b": 2},
            id="what a higher priority leaves",
        ),
        pytest.param(
            fleet(1, "b", held=30) + fleet(1, "b", 1, held=300),
            [job("a", 2, HOUR), job("b")],
            {"a": 2},
            id="a residence protects no slot that a late job needs",
        ),
        pytest.param(
            fleet(2, "a", held=30),
            [job("a", 0.4, HOUR), job("b")],
            {"a": 1, "b": 1},
            id="which gives back what it does not need",
        ),
        pytest.param(
            fleet(3, "a", held=30),
            [job("a", 0.4, HOUR), job("b")],
            {"a": 2, "b": 1},
            id="after its own residence",
        ),
        pytest.param(
            [Slot("s/0", refused=frozenset("a")), Slot("s/1", "b"), Slot("s/2", "b")],
            [job("a", 2, HOUR), job("b")],
            {"a": 2, "b": 1},
            id="others move to where it is refused",
        ),
        pytest.param(
            fleet(4),
            [job("a", 0.05, 0, job_id=each) for each in range(40)] + [job("b")],
            {"a": 3, "b": 1},
            id="forty small jobs share what they need",
        ),
    ],
)
def test_the_plan_of(slots: list[Slot], demand: list[JobDemand], plan: dict[str, int]) -> None:
    engines = {"a": Engine(60), "b": Engine(60), "c": Engine(60)}
    assert Counter(allocate(slots, demand, engines).values()) == plan


def test_an_autoscaler_is_asked_for_what_deadlines_need() -> None:
    demand = [
        job("a", 5, HOUR, slots=0.5, most_slots=9),
        job("b", 5, HOUR, slots=0.5, most_slots=2),
    ]
    assert desired_slots(demand) == {"a": 5, "b": 2}
    passed = job("a", 3000, -60, slots=2.5, most_slots=3000, beyond_reach=True)
    assert desired_slots([passed]) == {"a": 3}


def test_a_job_that_is_late_only_by_the_deadlines_of_others_keeps_its_slots() -> None:
    demand = [job("a", 3.4, HOUR), job("b", 1.2, 2 * HOUR), job("c")]
    assert key_shares(5, demand).reserved == {"a": 3.4, "b": 1.2}
    assert key_shares(5, [demand[0], job("b", 0.5, 2 * HOUR), demand[2]]).reserved == {"a": 3.4}


def test_what_is_known_of_a_job_becomes_its_demand() -> None:
    demand = [job("a", job_id=1), job("b", job_id=2)]
    planned = with_deadlines(demand, {1: LATE})
    assert planned[0] == replace(
        demand[0],
        deadline_slots=slots_needed(LATE),
        exact_slots=pytest.approx(2 + 72_000 / (10 * 3540)),
        due_seconds=HOUR,
        beyond_reach=False,
    )
    assert planned[1] == demand[1]


def test_floors_lie_below_the_share_of_the_others() -> None:
    claims = {1: (1.0, 9.0), 2: (1.0, 9.0), 3: (1.0, 1.0)}
    assert max_min(9, claims, {1: 7.5}) == pytest.approx({1: 7.5, 2: 0.75, 3: 0.75})
    assert max_min(9, claims, {1: 2}) == pytest.approx({1: 4, 2: 4, 3: 1})


JOBS = st.builds(
    JobDemand,
    job_id=st.integers(1, 10**6),
    engine_key=st.sampled_from("abcd"),
    slots=st.sampled_from((0.3, 1.0, 2.5, 100.0)),
    most_slots=st.sampled_from((1, 3, 100)),
    priority=st.sampled_from((0, 0, 1)),
    tenant=st.sampled_from(("", "", "x")),
    weight=st.sampled_from((1.0, 2.0)),
    deadline_slots=st.sampled_from((0.0, 0.0, 0.4, 2.0, 50.0)),
    due_seconds=st.floats(-HOUR, HOUR),
    beyond_reach=st.booleans(),
)
DEMAND = st.lists(JOBS, min_size=1, max_size=6, unique_by=lambda job: job.job_id)
SLOTS = st.lists(
    st.tuples(st.sampled_from((None, "a", "b", "c")), st.sampled_from((0.0, 30.0, LONG))),
    min_size=1,
    max_size=9,
).map(
    lambda found: [
        Slot(f"s/{n}", key, held_seconds=held if key else 0.0)
        for n, (key, held) in enumerate(found)
    ]
)
ENGINES = {"a": Engine(60), "b": Engine(0.5)}


@given(SLOTS, DEMAND)
@settings(max_examples=200)
def test_a_late_job_has_its_slots_before_others_of_its_priority(
    slots: list[Slot], demand: list[JobDemand]
) -> None:
    top = [job for job in demand if job.priority == max(job.priority for job in demand)]
    given = Counter(allocate(slots, demand, ENGINES).values())
    raised = [replace(job, slots=max(job.slots, job.least_slots)) for job in top]
    left = len(slots)
    for key, needed in key_shares(len(slots), raised).reserved.items():
        assert given[key] >= min(left, math.ceil(needed - 1e-6))
        left -= min(left, math.ceil(needed - 1e-6))


@given(SLOTS, DEMAND)
@settings(max_examples=200)
def test_deadlines_move_nothing_between_tenants_or_priorities(
    slots: list[Slot], demand: list[JobDemand]
) -> None:
    free = [replace(job, deadline_slots=0.0) for job in demand]
    shares = [key_shares(len(slots), jobs).shares for jobs in (demand, free)]
    assert sum(shares[0].values()) == pytest.approx(sum(shares[1].values()), abs=1e-4)
    by_tenant: dict[str, list[JobDemand]] = defaultdict(list)
    for each in demand:
        by_tenant[each.tenant].append(replace(each, engine_key=each.tenant))
    tenants = [job for own in by_tenant.values() for job in own]
    plain = [replace(job, deadline_slots=0.0) for job in tenants]
    assert key_shares(len(slots), tenants).shares == pytest.approx(
        key_shares(len(slots), plain).shares, abs=1e-4
    )
    lower = [replace(job, deadline_slots=0.0) if job.priority == 0 else job for job in demand]
    top = {job.engine_key for job in demand if job.priority == 1}
    below = {job.engine_key for job in demand if job.priority == 0}
    with_all, without = (Counter(allocate(slots, jobs, {}).values()) for jobs in (demand, lower))
    filled = desired_slots([job for job in demand if job.priority == 1])
    for key in top - below:
        # Slots that help with single batches stand behind what a deadline needs.
        assert with_all[key] >= min(without[key], filled[key])


@given(SLOTS, DEMAND)
@settings(max_examples=200)
def test_a_plan_that_was_followed_stays_as_it_is(
    slots: list[Slot], demand: list[JobDemand]
) -> None:
    plan = allocate(slots, demand, {})
    followed = [replace(slot, engine_key=plan[slot.id], held_seconds=0.0) for slot in slots]
    again = allocate(followed, demand, {})
    for seconds in (0.0, 1.0):
        followed = [
            replace(slot, engine_key=again[slot.id], held_seconds=seconds) for slot in slots
        ]
        assert allocate(followed, demand, {}) == again


@given(SLOTS, DEMAND)
@settings(max_examples=100)
def test_deadlines_that_shares_keep_change_no_plan(
    slots: list[Slot], demand: list[JobDemand]
) -> None:
    easy = [replace(job, deadline_slots=min(job.deadline_slots, 1e-3)) for job in demand]
    free = [replace(job, deadline_slots=0.0) for job in demand]
    if not key_shares(len(slots), easy).reserved:
        assert allocate(slots, easy, ENGINES) == allocate(slots, free, ENGINES)
