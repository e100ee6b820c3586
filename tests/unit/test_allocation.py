"""Who gets a slot: what the plan of a pool is in cases that have a name."""

from collections import Counter
from typing import Any

import pytest

from nightshift.common.allocation.demand import Engine, JobDemand, Slot
from nightshift.common.allocation.plan import allocate, desired_slots
from nightshift.common.allocation.shares import max_min

LONG = 10_000.0
"""Seconds beyond every residence here."""

MANY = 100_000


def slots(count: int, engine_key: str | None = None, first: int = 0, **facts: Any) -> list[Slot]:
    return [Slot(f"s/{first + each:04}", engine_key, **facts) for each in range(count)]


def job(engine_key: str, count: float, **facts: Any) -> JobDemand:
    facts = {
        "most_slots": int(-(-count // 1)),
        "job_id": hash((engine_key, *facts.items())),
        **facts,
    }
    return JobDemand(engine_key=engine_key, slots=count, **facts)


MINUTE = Engine(load_seconds=60)


@pytest.mark.parametrize(
    ("fleet", "demand", "plan"),
    [
        pytest.param([], [job("a", 1)], {}, id="no slot"),
        pytest.param(slots(2), [], {None: 2}, id="no work"),
        pytest.param(
            slots(8, "a", held_seconds=LONG),
            [job("a", MANY), job("b", MANY)],
            {"a": 4, "b": 4},
            id="a second model of equal priority shares",
        ),
        pytest.param(
            slots(8, "a", held_seconds=30),
            [job("a", MANY), job("b", MANY)],
            {"a": 7, "b": 1},
            id="in its residence an engine gives the other its first slot",
        ),
        pytest.param(
            slots(8, "a", held_seconds=30),
            [job("a", MANY), job("b", MANY, priority=5)],
            {"b": 8},
            id="an urgent job of a million batches gets every slot",
        ),
        pytest.param(
            slots(8, "a", held_seconds=30),
            [job("a", MANY), job("b", 1, priority=5)],
            {"a": 7, "b": 1},
            id="an urgent job of one batch gets one slot",
        ),
        pytest.param(
            slots(1, "a", held_seconds=30) + slots(7, "a", 1, held_seconds=30, idle=True),
            [job("a", 1), job("b", MANY)],
            {"a": 1, "b": 7},
            id="seven children behind max_parallel: 1 make room",
        ),
        pytest.param(
            slots(1, "a", held_seconds=30, idle=True),
            [job("b", 17_576 / 128)],
            {"b": 1},
            id="an engine with nothing to claim makes room in its residence",
        ),
        pytest.param(
            slots(1, "a", held_seconds=30),
            [job("b", 5)],
            {"b": 1},
            id="an engine without work gives another its first slot at once",
        ),
        pytest.param(
            slots(1, "b", held_seconds=30) + slots(1, "a", 1, held_seconds=30),
            [job("b", 5)],
            {"b": 1, None: 1},
            id="for more slots it waits until the engine counts as idle",
        ),
        pytest.param(
            slots(1, "b") + slots(7, "a", 1),
            [job("b", 5)],
            {"b": 5, None: 3},
            id="a load that nobody needs any more is cut short",
        ),
        pytest.param(
            slots(4, "a", idle=True, held_seconds=LONG),
            [job("b", 0.1, most_slots=3)],
            {"b": 3, None: 1},
            id="where slots are left, each batch may have one",
        ),
        pytest.param(
            slots(4),
            [job("a", 0.1, most_slots=9), job("b", 3, priority=-1)],
            {"a": 1, "b": 3},
            id="a window of many batches takes one slot while others have work",
        ),
        pytest.param(
            slots(4),
            [job("a", 0.01, most_slots=1, job_id=each) for each in range(40)],
            {"a": 4},
            id="forty small jobs of one engine",
        ),
        pytest.param(
            slots(8, "a", held_seconds=LONG),
            [job("a", 2), job("b", MANY)],
            {"a": 2, "b": 6},
            id="demand is the cap, and the other takes the rest",
        ),
        pytest.param(
            slots(10),
            [job("a", MANY, job_id=1), job("a", MANY, job_id=2), job("b", MANY)],
            {"a": 7, "b": 3},
            id="jobs share, not engines",
        ),
        pytest.param(
            slots(9),
            [job("a", MANY, weight=2.0), job("b", MANY)],
            {"a": 6, "b": 3},
            id="by weight",
        ),
        pytest.param(
            slots(8),
            [job(key, MANY, tenant="x") for key in "ab"] + [job("c", MANY, tenant="y")],
            {"a": 2, "b": 2, "c": 4},
            id="tenants share before their jobs do",
        ),
        pytest.param(
            slots(8),
            [job("a", MANY, job_id=each, tenant="x") for each in range(10)]
            + [job("b", MANY, tenant="y")],
            {"a": 4, "b": 4},
            id="ten jobs of a tenant get no more than one of another",
        ),
        pytest.param(
            slots(9),
            [job("a", MANY, job_id=each, tenant="x") for each in range(10)]
            + [job("b", MANY, tenant="y", tenant_weight=2.0)],
            {"a": 3, "b": 6},
            id="tenants share by weight",
        ),
        pytest.param(
            slots(2, "a", held_seconds=LONG),
            [job("a", MANY), job("b", 1), job("c", 1)],
            {"b": 1, "c": 1},
            id="more engines than slots: those that wait come next",
        ),
        pytest.param(
            slots(1, "a", held_seconds=359),
            [job("a", MANY), job("b", 1)],
            {"a": 1},
            id="six loads are a residence",
        ),
        pytest.param(
            slots(1, "a", held_seconds=361),
            [job("a", MANY), job("b", MANY)],
            {"b": 1},
            id="and no more",
        ),
        pytest.param(
            slots(1, "a", refused=frozenset("b")) + slots(1, "a", 1, held_seconds=30),
            [job("a", 1), job("b", 1)],
            {"a": 1, "b": 1},
            id="the slot that does not refuse it",
        ),
        pytest.param(
            slots(1, None, refused=frozenset("b")) + slots(1, "a", 1, held_seconds=30),
            [job("a", 1), job("b", 1)],
            {"a": 1, "b": 1},
            id="another engine moves where this one is refused",
        ),
        pytest.param(
            slots(2, refused=frozenset("a")), [job("a", 5)], {None: 2}, id="refused everywhere"
        ),
        pytest.param(
            slots(1, "a", held_seconds=30, refused=frozenset("a"))
            + slots(1, None, 1, refused=frozenset("a")),
            [job("a", MANY, priority=1), job("b", MANY)],
            {"a": 1, "b": 1},
            id="a failed load takes the engine from no slot that has it",
        ),
        pytest.param(
            slots(2, only="a") + slots(1, None, 2),
            [job("a", 1), job("b", 5)],
            {"a": 1, "b": 1, None: 1},
            id="slots of one engine serve no other",
        ),
        pytest.param(
            slots(6, "a", held_seconds=30) + slots(1, "c", 6, held_seconds=LONG),
            [job("a", MANY), job("c", MANY), job("b", 2, priority=1)],
            {"a": 4, "b": 2, "c": 1},
            id="urgent work takes from the engine with the most slots",
        ),
        pytest.param(
            slots(1000),
            [job("a", MANY), job("b", 300), job("c", 100)],
            {"a": 600, "b": 300, "c": 100},
            id="a thousand machines that start together",
        ),
    ],
)
def test_the_plan_of(
    fleet: list[Slot], demand: list[JobDemand], plan: dict[str | None, int]
) -> None:
    engines = {"a": MINUTE, "b": Engine(0.6, waiting_seconds=1), "c": Engine(60, 2)}
    assert Counter(allocate(fleet, demand, engines).values()) == plan


def test_the_one_batch_of_an_urgent_job_takes_the_slot_that_is_missed_least() -> None:
    fleet = [
        Slot("s/1", "a", held_seconds=100),
        Slot("s/2", "a", held_seconds=50),
        Slot("s/3", "a", idle=True, held_seconds=200),
    ]
    plan = allocate(fleet, [job("a", 3), job("b", 1, priority=1)], {})
    assert plan == {"s/1": "a", "s/2": "a", "s/3": "b"}


def test_a_plan_that_was_followed_stays_as_it_is() -> None:
    demand = [job("a", MANY), job("b", 3), job("c", 0.5), job("d", 2, priority=1)]
    fleet = slots(9)
    for seconds in (0.0, 1.0, LONG):
        plan = allocate(fleet, demand, {})
        fleet = [Slot(slot.id, plan[slot.id], held_seconds=seconds) for slot in fleet]
        assert allocate(fleet, demand, {}) == plan


def test_an_autoscaler_is_asked_for_the_slots_that_a_pool_without_end_would_fill() -> None:
    demand = [job("a", 2.5), job("a", 1.6, job_id=2), job("b", 0.2, most_slots=1), job("c", 3.0)]
    assert desired_slots(demand) == {"a": 5, "b": 1, "c": 3}
    plan = Counter(allocate(slots(9), demand, {}).values())
    assert plan == desired_slots(demand)


def test_an_autoscaler_starts_no_slot_for_batches_that_one_window_holds() -> None:
    """The engine of one slot runs them all at once. Slots that stand there anyway may help."""
    demand = [job("a", 0.5, most_slots=9)]
    assert desired_slots(demand) == {"a": 1}
    assert Counter(allocate(slots(20), demand, {}).values()) == {"a": 9, None: 11}
    assert Counter(allocate(slots(1), demand, {}).values()) == {"a": 1}


@pytest.mark.parametrize(
    ("capacity", "claims", "shares"),
    [
        pytest.param(9, {1: (1, 5), 2: (1, 5)}, {1: 4.5, 2: 4.5}, id="equal"),
        pytest.param(9, {1: (1, 2), 2: (1, 9)}, {1: 2, 2: 7}, id="what one leaves the other takes"),
        pytest.param(9, {1: (2, 9), 2: (1, 9)}, {1: 6, 2: 3}, id="by weight"),
        pytest.param(9, {1: (2, 9), 2: (1, 9), 3: (1, 1)}, {1: 16 / 3, 2: 8 / 3, 3: 1}, id="three"),
        pytest.param(9, {1: (1, 2), 2: (1, 3)}, {1: 2, 2: 3}, id="enough for all"),
    ],
)
def test_max_min_shares(
    capacity: float, claims: dict[int, tuple[float, float]], shares: dict[int, float]
) -> None:
    assert max_min(capacity, claims) == pytest.approx(shares)
