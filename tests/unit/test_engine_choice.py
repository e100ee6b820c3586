"""Which engine a free slot loads, and when a child must make room for another engine."""

import pytest

from nightshift.common.ledger.workers import ChildStatus, EngineDemand
from nightshift.worker.supervisor.engine_choice import for_free_slot, in_place_of

IDLE_LIMIT = 60.0


def work(key: str, priority: int = 0, children: int = 0, job_id: int = 1) -> EngineDemand:
    return EngineDemand(key, job_id, priority, children, waiting=1)


@pytest.mark.parametrize(
    ("demand", "loaded", "chosen"),
    [
        pytest.param([], [], None, id="nothing is open"),
        pytest.param([work("a"), work("b", 1, 5)], [], "b", id="priority comes first"),
        pytest.param([work("a", children=2), work("b", children=1)], [], "b", id="fewest children"),
        pytest.param([work("a"), work("b", job_id=2)], ["a"], "b", id="just started here counts"),
        pytest.param([work("a", job_id=2), work("b")], [], "b", id="the older job breaks a tie"),
        pytest.param([work("a", children=3), work("b")], ["b"], "b", id="the larger count counts"),
    ],
)
def test_a_free_slot_takes_the_most_urgent_work_with_the_fewest_children(
    demand: list[EngineDemand], loaded: list[str], chosen: str | None
) -> None:
    best = for_free_slot(demand, loaded)
    assert (best and best.engine_key) == chosen


@pytest.mark.parametrize(
    ("state", "idle_seconds", "demand", "served", "replacement"),
    [
        pytest.param("loading", 999, [work("b", 9)], {"a"}, None, id="a load is never cut short"),
        pytest.param("draining", 999, [work("b", 9)], {"a"}, None, id="it leaves already"),
        pytest.param("ready", 999, [], {"a"}, None, id="warm until somebody needs the slot"),
        pytest.param("ready", 999, [work("a")], {"a"}, None, id="its own work alone"),
        pytest.param("ready", 61, [work("b")], {"a"}, "b", id="idle and others wait"),
        pytest.param("ready", 60, [work("b")], {"a"}, None, id="idle, not yet for long enough"),
        pytest.param("ready", 0, [work("b", 9)], {"a"}, None, id="busy with its last batches"),
        pytest.param(
            "ready", 61, [work("b", children=1)], {"a"}, "b", id="idle helps a served engine"
        ),
        pytest.param(
            "ready", 61, [work("b", children=1), work("a")], {"a"}, None, id="own work is enough"
        ),
        pytest.param(
            "ready", 61, [work("b"), work("a")], {"a", "b"}, None, id="another slot has it"
        ),
        pytest.param("ready", 61, [work("a"), work("b")], {"a"}, "b", id="idle beside own work"),
        pytest.param("ready", 0, [work("b", 1), work("a")], {"a"}, "b", id="more urgent work"),
        pytest.param("ready", 0, [work("b"), work("a")], {"a"}, None, id="equally urgent work"),
        pytest.param(
            "ready", 0, [work("b", 1, 1), work("a")], {"a"}, None, id="urgent and served elsewhere"
        ),
        pytest.param(
            "ready", 0, [work("b", 1), work("a")], {"a", "b"}, None, id="urgent and promised a slot"
        ),
        pytest.param(
            "ready",
            0,
            [work("b", 2, 1), work("c", 1), work("a")],
            {"a"},
            "c",
            id="the first that is urgent and unserved",
        ),
    ],
)
def test_a_child_makes_room_when_it_idles_or_more_urgent_work_has_no_child(
    state: str,
    idle_seconds: float,
    demand: list[EngineDemand],
    served: set[str],
    replacement: str | None,
) -> None:
    child = ChildStatus(state, idle_seconds, 0.0)
    assert in_place_of("a", child, demand, served, IDLE_LIMIT) == replacement


def test_a_child_that_the_ledger_does_not_know_yet_is_kept() -> None:
    assert in_place_of("a", None, [work("b", 9)], {"a"}, IDLE_LIMIT) is None
