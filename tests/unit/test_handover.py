"""What a busy child hands over to idle siblings, as a table; and which rows an engine lets go."""

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from nightshift.common.ledger.batches.handovers import Siblings
from nightshift.worker.engines.arrival_order import Line
from nightshift.worker.engines.loop_thread import run_rows
from nightshift.worker.engines.protocol import Outcome, Request, Work
from nightshift.worker.handover.decision import NOTHING, Gift, Load, gift, part_sizes
from tests.support.functions import TASK

BUSY = Load(unfinished=100, waiting=80, finished=80, seconds=100.0)
"""A child with a second a row: 20 of its rows have begun."""


def siblings(idle: int, busy: int = 0, waiting: int = 0) -> Siblings:
    return Siblings(idle, busy, waiting, {})


@pytest.mark.parametrize(
    ("load", "others", "expected"),
    [
        pytest.param(BUSY, siblings(0, 3), NOTHING, id="nobody is idle"),
        pytest.param(BUSY, siblings(2, 0, waiting=2), NOTHING, id="batches wait for the idle ones"),
        pytest.param(replace(BUSY, waiting=0), siblings(3), NOTHING, id="every row has begun"),
        pytest.param(BUSY, siblings(1), Gift(50, 1), id="one gets half"),
        pytest.param(BUSY, siblings(3), Gift(75, 3), id="three get a quarter each"),
        pytest.param(BUSY, siblings(3, 0, waiting=2), Gift(50, 1), id="two have been served"),
        pytest.param(BUSY, siblings(1, 98), Gift(50, 1), id="one is served by whoever comes first"),
        pytest.param(BUSY, siblings(50, 49), Gift(50, 1), id="as many busy: each serves one"),
        pytest.param(BUSY, siblings(99), Gift(80, 40), id="no piece is worth less than a move"),
        pytest.param(
            replace(BUSY, waiting=10), siblings(1), Gift(10, 1), id="no more than has not begun"
        ),
        pytest.param(
            replace(BUSY, seconds=1.0), siblings(1), NOTHING, id="quick rows are not worth a move"
        ),
        pytest.param(
            replace(BUSY, seconds=5.0), siblings(3), Gift(50, 1), id="quick rows in one piece"
        ),
        pytest.param(Load(5, 4, 0, 60.0), siblings(4), Gift(4, 4), id="a slow row is worth a move"),
        pytest.param(Load(64, 0, 0, 0.0), siblings(1), NOTHING, id="a child that has just begun"),
        pytest.param(Load(128, 64, 0, 0.0), siblings(1), NOTHING, id="no row was measured yet"),
    ],
)
def test_a_child_hands_over_its_share_and_nothing_below_the_cost_of_a_move(
    load: Load, others: Siblings, expected: Gift
) -> None:
    assert gift(load, others) == expected


@pytest.mark.parametrize(
    ("rows", "piece_rows", "expected"),
    [
        pytest.param(1, 1, [1], id="a slow row alone"),
        pytest.param(1, 28, [1], id="less than a piece"),
        pytest.param(28, 28, [28], id="one piece"),
        pytest.param(29, 28, [29], id="no part of one row beside a piece"),
        pytest.param(45, 28, [23, 22], id="two about even"),
        pytest.param(57, 28, [29, 28], id="two and a row"),
        pytest.param(4, 1, [1, 1, 1, 1], id="slow rows, each a piece"),
    ],
)
def test_what_a_batch_gives_is_cut_evenly_and_without_dust(
    rows: int, piece_rows: int, expected: list[int]
) -> None:
    assert part_sizes(rows, piece_rows) == expected


def test_a_hundred_children_share_without_dust_and_come_to_rest() -> None:
    """However the rows lie: each piece is worth a move, no giver keeps less than a piece, and after
    few gifts nobody gives any more.
    """
    chance = random.Random(7)
    for _ in range(100):
        children = [chance.choice((0, 0, chance.randrange(400))) for _ in range(100)]
        for _ in range(200):
            gifts = list(filter(None, (give(children, at) for at in range(100))))
            if not gifts:
                break
            assert all(rows >= LEAST_ROWS for rows in itertools.chain.from_iterable(gifts))
        assert not gifts
        assert all(children) or max(children) < 2 * LEAST_ROWS


LEAST_ROWS = 20
"""A move is worth so many rows of a tenth of a second."""


def give(children: list[int], giver: int) -> list[int]:
    """The pieces that a child gives by what it sees; the idle ones take them at once."""
    rows = children[giver]
    idle = [place for place, own in enumerate(children) if not own]
    given = gift(Load(rows, rows, 10_000, 1_000.0), siblings(len(idle), 99 - len(idle)))
    assert given.pieces <= len(idle)
    pieces = []
    for place in idle[: given.pieces]:
        pieces.append(-(-(given.rows - sum(pieces)) // (given.pieces - len(pieces))))
        children[place] += pieces[-1]
    children[giver] -= given.rows
    assert not given.rows or children[giver] >= LEAST_ROWS
    return pieces


def work_of(rows: int) -> Work:
    return Work(TASK, [Request(index) for index in range(10, 10 + rows)], 60, lambda *_: None)


def test_the_last_rows_that_have_not_begun_are_withdrawn() -> None:
    work, dropped = work_of(6), list[int]()
    work.wait(dropped.extend, range(10, 16))
    assert work.begin(10)
    assert work.rows_waiting == 5
    assert work.take_back(2) == [14, 15] == dropped
    assert not work.begin(15)
    assert work.is_taken_back(14)
    assert work.begin_all() == 4
    assert work.take_back(9) == []


def test_the_last_rows_are_those_of_the_last_requests_in_any_order_of_the_rows() -> None:
    work = Work(TASK, [Request(row) for row in (8, 3, 9, 1, 0, 7)], 60, lambda *_: None)
    work.wait(lambda _: None, range(10))
    assert work.take_back(3) == [0, 1, 7]
    assert work.take_back(1) == [9]
    assert work.begin_all() == 2


@pytest.mark.parametrize("is_taken_back", [False, True])
def test_a_row_that_ends_before_it_began_is_answered_or_given_away(is_taken_back: bool) -> None:
    """As an image that cannot be read: the row waits for its turn, and is refused."""
    outcomes: dict[int, Outcome] = {}
    requests = [Request(10), Request(11)]
    work = Work(TASK, requests, 60, outcomes.__setitem__)

    async def answer(request: Request, _: int) -> Outcome:
        if request.row_index == 10:
            await asyncio.Event().wait()
        if is_taken_back:
            assert work.take_back(1) == [11]
        raise ValueError("no image")

    async def run() -> list[int]:
        rows = asyncio.ensure_future(run_rows(work, [(0, 0), (1, 1)], answer, str))
        while len(outcomes) + len(work._taken_back) == 0:
            await asyncio.sleep(0)
        left = work.take_back(9)
        await rows
        return left

    assert asyncio.run(asyncio.wait_for(run(), 120)) == [10]
    assert list(outcomes) == ([] if is_taken_back else [1])


def test_of_an_engine_that_says_nothing_no_row_is_withdrawn() -> None:
    work = work_of(3)
    assert work.rows_waiting == 0
    assert work.take_back(3) == []


def test_as_many_rows_of_a_line_have_begun_as_the_engine_runs_at_once() -> None:
    line, work = Line(2), work_of(5)
    work.wait(lambda _: None, range(10, 15))
    places = [line.enter(work, row) for row in range(10, 15)]
    assert work.rows_waiting == 3
    line.leave(places[0])
    assert work.take_back(9) == [13, 14]
    line.leave(places[3])
    line.leave(places[4])
    assert not places[3].begun
    line.leave(places[1])
    line.leave(places[2])
    assert line.enter(work, 10).begun
