"""Leases become bars: a lane a slot, at most so many bars and lanes, and no row is lost."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nightshift.producer.serve.console.pictures import bars as joining
from nightshift.producer.serve.console.pictures.bars import (
    LOAD,
    MOST_BARS,
    MOST_LANES,
    OTHERS,
    TYPICAL_GAPS,
    Bar,
    Lanes,
)


def lease(
    began: float, ended: float, *, host: str | None = "a", slot: int = 0, **more: Any
) -> Mapping[str, Any]:
    usual = {"worker": "w", "started": None, "ready": None, "outcome": "done", "rows": 10}
    return {
        **usual,
        "host": host,
        "slot": slot,
        "claimed": began,
        "ended": ended,
        "failed": 0,
        "seq": 1,
        **more,
    }


def bars(of: Lanes) -> list[Bar]:
    return [bar for found in of.bars.values() for bar in found]


def work(slots: int, batches: int, hosts: int = 1) -> Iterator[Mapping[str, Any]]:
    """So many batches on so many slots of each host, each of a second, one behind the other."""
    for number in range(batches):
        place = number % (slots * hosts)
        at = number // (slots * hosts)
        outcome = "failed" if number % 10 == 0 else "done"
        yield lease(
            at, at + 1, host=f"h{place // slots}", slot=place % slots, outcome=outcome, seq=number
        )


def test_a_lease_is_a_bar_while_there_is_room() -> None:
    found = Lanes.of([lease(0, 5, seq=3), lease(4, 9, seq=4, outcome="lost"), lease(9, 9)])
    assert found.bars == {
        ("a", 0): [
            Bar("d", 0, 5, 1, 10, 0, 3),
            Bar("l", 4, 9, 1, 10, 0, 4),
            Bar("d", 9, 9, 1, 10, 0, 1),
        ]
    }


@pytest.mark.parametrize("slots", [1, 7, 40])
def test_neighbours_are_merged_so_that_bars_are_few_and_every_batch_counts(slots: int) -> None:
    found = Lanes.of(work(slots, 9000))
    assert found.count <= MOST_BARS
    assert found.count > MOST_BARS / 5, "as fine as there is room"
    assert sum(bar.batches for bar in bars(found)) == 9000
    assert sum(bar.rows for bar in bars(found)) == 90_000
    assert sum(bar.batches for bar in bars(found) if bar.kind == "f") == 900
    assert len(found.bars) == slots


def test_above_200_slots_a_lane_is_a_host_and_above_200_hosts_the_rest_share_one() -> None:
    found = Lanes.of(work(8, 2 * MOST_LANES * 8, hosts=2 * MOST_LANES))
    assert found.by_host
    assert len(found.bars) == MOST_LANES
    assert OTHERS in found.bars
    assert sum(bar.batches for bar in bars(found)) == 2 * MOST_LANES * 8
    assert found.place("new", 3) == OTHERS
    assert found.place("h0", 9) == ("h0", None)


def test_200_slots_have_a_lane_each() -> None:
    found = Lanes.of(work(MOST_LANES, MOST_LANES))
    assert not found.by_host
    assert len(found.bars) == MOST_LANES


@pytest.mark.parametrize(
    ("given", "step", "found"),
    [
        ([], 5, []),
        ([(0, 1), (1, 2)], 2, [(0, 2)]),
        ([(0, 1), (1, 2)], 1.9, [(0, 1), (1, 2)]),
        ([(0, 1), (4, 5)], 5, [(0, 5)]),  # a short pause is part of the bar
        ([(0, 9), (1, 2)], 5, [(0, 9), (1, 2)]),  # a long bar stays as it is
        ([(1, 2), (0, 1)], 2, [(0, 2)]),
        ([(0, 1), (1, 2), (2, 3), (3, 4)], 2, [(0, 2), (2, 4)]),
    ],
)
def test_which_neighbours_are_one_bar(
    given: list[tuple[float, float]], step: float, found: list[tuple[float, float]]
) -> None:
    made = joining.merged([Bar("d", *times, 1) for times in given], step)
    assert [(bar.began, bar.ended) for bar in made] == found
    assert sum(bar.batches for bar in made) == len(given)


def test_what_failed_is_not_merged_with_what_is_done() -> None:
    made = joining.merged([Bar("d", 0, 1), Bar("f", 1, 2), Bar("d", 2, 3), Bar("f", 3, 4)], 10)
    assert [(bar.kind, bar.began, bar.ended) for bar in made] == [("d", 0, 3), ("f", 1, 4)]


def test_a_load_is_one_bar_however_many_batches_its_child_had() -> None:
    loaded = {"started": 0.123, "ready": 7.987}
    found = Lanes.of(
        [
            lease(8, 9, **loaded),
            lease(9, 10, **loaded),
            lease(40, 41, started=30.0, ready=39.0),
        ]
    )
    loads = [(bar.began, bar.ended) for bar in bars(found) if bar.kind == LOAD]
    assert loads == [(0.123, 7.987), (30.0, 39.0)]


def test_a_child_that_the_ledger_has_forgotten_has_a_lane_of_its_own() -> None:
    found = Lanes.of([lease(0, 1, host=None, slot=None)])
    assert list(found.bars) == [("w", None)]


def test_a_lane_of_thinned_leases_is_closed_up_but_for_pauses_and_leases_without_an_answer() -> (
    None
):
    begins = [0, 10, 20, 30, 30 + TYPICAL_GAPS * 10 + 9]
    leases = [lease(at, at + 2, seq=at) for at in begins]
    found = Lanes.of([*leases, lease(22, 23, outcome="lost")], is_sampled=True)
    spans = [(bar.kind, bar.began, bar.ended) for bar in bars(found)]
    assert spans == [
        ("d", 0, 10),
        ("d", 10, 20),
        ("d", 20, 30),
        ("d", 30, 32),
        ("d", 119, 121),
        ("l", 22, 23),
    ]
    assert found.is_sampled


def test_leases_that_overlap_keep_their_ends_in_a_thinned_lane() -> None:
    found = Lanes.of([lease(0, 30), lease(10, 12), lease(20, 22)], is_sampled=True)
    assert [(bar.began, bar.ended) for bar in bars(found)] == [(0, 30), (10, 20), (20, 22)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], 0),
        ([("d", 0, 5), ("d", 7, 9)], 7),
        ([("d", 0, 5), ("f", 3, 9)], 9),
        ([("d", 0, 9), ("r", 3, 4)], 9),
        ([("o", 0, 5), ("d", 5, 6)], 1),
    ],
)
def test_how_long_a_lane_was_at_work(given: list[tuple[str, float, float]], found: float) -> None:
    assert joining.busy_seconds([Bar(*each) for each in given]) == found
