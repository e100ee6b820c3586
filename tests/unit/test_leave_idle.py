"""When a worker leaves by itself: what counts as nothing to do, and for how long it was seen."""

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger.fleet.slots import SlotOrder
from nightshift.worker.cli import idle_seconds
from nightshift.worker.supervisor.idleness import COUNTED_SECONDS, Idleness, has_nothing_to_do


def order(
    planned: str | None = None,
    *,
    holds: bool = False,
    waits: bool = False,
    cordoned: bool = False,
    drained: bool = False,
) -> SlotOrder:
    """What the ledger says of a slot."""
    return SlotOrder(
        0,
        None,
        None,
        planned,
        None if planned is None else 1,
        has_work=waits,
        cordoned=cordoned,
        drained=drained,
        holds_nothing=not holds,
    )


IDLE = order()


@pytest.mark.parametrize(
    ("state", "order", "nothing"),
    [
        ("free", IDLE, True),
        ("free", order("key"), False),
        ("free", order(cordoned=True), True),
        ("free", order(cordoned=True, drained=True), True),
        ("loading", IDLE, False),
        ("loading", order("key"), False),
        ("ready", IDLE, True),
        ("ready", order(holds=True), False),
        ("ready", order("key"), False),
        ("ready", order("key", holds=True), False),
        ("ready", order(waits=True), False),
        ("ready", order(cordoned=True), False),
        ("draining", IDLE, False),
        ("draining", order(holds=True), False),
        ("draining", order(cordoned=True, drained=True), False),
        ("lost", IDLE, True),
    ],
)
def test_a_slot_has_nothing_to_do_without_a_load_a_lease_or_a_plan(
    state: str, order: SlotOrder, nothing: bool
) -> None:
    assert has_nothing_to_do(state, order) is nothing


FREE, BUSY = [("free", IDLE)], [("ready", order(holds=True))]
BOTH = [*FREE, *BUSY]


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([], 0),
        ([(7, FREE)], 0),
        ([(7, FREE), (8, FREE), (9, FREE)], 2),
        ([(7, FREE), (8, BUSY), (9, FREE), (10, FREE)], 1),
        ([(7, FREE), (8, BOTH), (9, FREE)], 0),
        # Postgres away, or without a plan of the moment: that time counts for nothing.
        ([(7, FREE), (8, FREE), (9, None), (3600, None), (3601, FREE), (3602, FREE)], 2),
        ([(7, None), (3600, None)], 0),
        ([(7, FREE), (8, FREE), (9, None), (10, BUSY), (11, FREE)], 0),
        # A process that was stopped for an hour.
        ([(7, FREE), (3607, FREE)], COUNTED_SECONDS),
    ],
)
def test_only_time_between_looks_that_saw_all_slots_idle_counts(
    looks: list[tuple[float, list[tuple[str, SlotOrder]] | None]], seconds: float
) -> None:
    found = Idleness()
    for now, slots in looks:
        found = found.after(now, slots)
    assert found.seconds == seconds


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("2s", 2), ("1h30m", 5400)])
def test_the_time_is_a_duration(text: str, seconds: float) -> None:
    assert idle_seconds(text) == seconds


@pytest.mark.parametrize("text", ["600", "", "soon", "0s", "-5m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--leave-idle"):
        idle_seconds(text)
