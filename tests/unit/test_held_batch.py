"""The life of a held batch: its table of moves, and every order in which those who move it may come."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nightshift.worker.engines.protocol import Work
from nightshift.worker.handover.handover import Handover
from nightshift.worker.held_batch import MOVES, MOVES_ROWS, WAITING, HeldBatch, Move, State
from tests.support.fleet import wait_until
from tests.unit.test_window import LEASE

STATES = Path(__file__).parents[2] / "docs" / "states.md"

R, M, MS, ML = State.RUNNING, State.MOVING, State.MOVING_STOPPED, State.MOVING_LEFT
S, L, P, C, O = State.STOPPED, State.LEFT, State.PUBLISHING, State.COMMITTED, State.OVER  # noqa: E741

TABLE = {
    #                    R     M     MS    ML    S     L     P     C     O
    Move.HAND_OVER: (M, None, None, None, None, None, None, None, None),
    Move.HANDED_OVER: (None, R, S, P, None, None, None, None, None),
    Move.STOP: (S, MS, None, None, None, P, None, None, None),
    Move.LEAVE: (L, ML, ML, None, P, None, None, None, None),
    Move.AGAIN: (None, None, None, None, None, R, None, None, None),
    Move.PUBLISH: (P, None, None, None, P, P, P, None, None),
    Move.COMMIT: (None, None, None, None, None, None, C, None, None),
    Move.LOSE: (O, None, None, None, O, None, None, None, None),
    Move.UNWANT: (O, None, None, None, O, None, None, None, None),
    Move.GIVE_UP: (O, None, None, None, O, O, O, O, None),
    Move.END: (O, None, None, None, O, O, O, O, None),
}


def work() -> Work:
    return Work(task=None, requests=[], row_timeout_seconds=1, emit=lambda *_: None)  # type: ignore[arg-type]


def held(state: State = R) -> HeldBatch:
    return HeldBatch(LEASE, 1, state=state)


@pytest.mark.parametrize("move", Move)
def test_what_a_move_makes_of_each_state(move: Move) -> None:
    for before, after in zip(State, TABLE[move], strict=True):
        if before in MOVES_ROWS and move in WAITING:
            continue  # it waits
        batch = held(before)
        assert batch.move(move) is (None if after is None else before)
        assert batch.state is (after or before), before


STORIES = {
    "a batch is done": [
        (Move.LEAVE, L),
        (Move.PUBLISH, P),
        (Move.COMMIT, C),
        (Move.END, O),
    ],
    "rows that waited in vain run": [
        (Move.LEAVE, L),
        (Move.AGAIN, R),
        (Move.LEAVE, L),
        (Move.PUBLISH, P),
    ],
    "a drain keeps what is finished": [(Move.STOP, S), (Move.LEAVE, P), (Move.COMMIT, C)],
    "a drain comes before the next round": [(Move.LEAVE, L), (Move.STOP, P), (Move.AGAIN, P)],
    "a drain comes while rows move": [
        (Move.HAND_OVER, M),
        (Move.STOP, MS),
        (Move.HANDED_OVER, S),
        (Move.HAND_OVER, S),
    ],
    "the engine is done while rows move": [
        (Move.HAND_OVER, M),
        (Move.LEAVE, ML),
        (Move.HANDED_OVER, P),
    ],
    "no row moves once the engine is done": [(Move.LEAVE, L), (Move.HAND_OVER, L)],
    "a lease is lost while rows move": [
        (Move.HAND_OVER, M),
        (Move.LOSE, M),
        (Move.UNWANT, M),
        (Move.GIVE_UP, M),
        (Move.HANDED_OVER, R),
    ],
    "a lease is lost while its part is committed": [
        (Move.LEAVE, L),
        (Move.LOSE, L),
        (Move.PUBLISH, P),
        (Move.LOSE, P),
        (Move.UNWANT, P),
    ],
    "a thread that was given up goes on": [
        (Move.GIVE_UP, O),
        (Move.LEAVE, O),
        (Move.PUBLISH, O),
        (Move.COMMIT, O),
        (Move.END, O),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_goes_as_it_should(story: str) -> None:
    batch = held()
    for move, after in STORIES[story]:
        before = batch.state
        done = batch.move(move)
        assert batch.state is after, move
        assert done is (None if after is before else before)


@pytest.mark.parametrize("state", [S, O])
def test_work_that_comes_after_a_stop_is_stopped_too(state: State) -> None:
    batch, late = held(state), work()
    batch.attach(late)
    assert late.stopped.is_set()


def test_a_lease_that_changed_since_it_was_asked_for_is_not_lost() -> None:
    batch = held()
    assert batch.lose((LEASE.batch_id, LEASE.attempt - 1)) is None
    assert batch.lose((LEASE.batch_id, LEASE.attempt)) is R


def waiting(batch: HeldBatch) -> int:
    """How many threads wait until no row moves."""
    return len(batch._changed._waiters)  # type: ignore[attr-defined]


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("move", WAITING)
def test_who_would_publish_or_end_a_batch_waits_until_no_row_of_it_moves(
    move: Move, stopped: bool
) -> None:
    batch = held()
    batch.move(Move.HAND_OVER)
    if stopped:
        batch.stop()
    seen: list[tuple[State | None, int]] = []
    thread = threading.Thread(
        target=lambda: seen.append((batch.move(move), batch.lease.attempt)), daemon=True
    )
    thread.start()
    wait_until(lambda: waiting(batch), what="a thread that waits")
    batch.lease = replace(LEASE, attempt=LEASE.attempt + 1)
    batch.move(Move.HANDED_OVER)
    thread.join(60)
    assert seen == [(S if stopped else R, LEASE.attempt + 1)]


@pytest.mark.parametrize("stopped", [False, True])
def test_work_that_comes_while_rows_move_waits_too(stopped: bool) -> None:
    batch, late = held(), work()
    batch.move(Move.HAND_OVER)
    thread = threading.Thread(target=batch.attach, args=(late,), daemon=True)
    thread.start()
    wait_until(lambda: waiting(batch), what="a thread that waits")
    assert batch.work is None
    if stopped:
        batch.stop()
    batch.move(Move.HANDED_OVER)
    thread.join(60)
    assert batch.work is late
    assert late.stopped.is_set() == stopped


def test_a_handover_that_fails_lets_the_batch_go_on() -> None:
    """Else its thread would wait for ever."""

    def break_down(_: int) -> list[int]:
        raise RuntimeError("the engine is gone")

    batch, unused = held(), cast(Any, None)
    batch.work = cast(Any, SimpleNamespace(take_back=break_down))
    with pytest.raises(RuntimeError, match="the engine is gone"):
        Handover(unused, unused)._hand_over_rows(batch, 1, 1)
    assert batch.state is R


def test_the_page_draws_the_table() -> None:
    drawn = STATES.read_text().partition("## A held batch")[2].partition("```mermaid")[2]
    lines = re.findall(r"^    (\w+) --> (\w+): (.+)$", drawn.partition("```")[0], re.MULTILINE)
    edges = {
        (before, after, word)
        for before, after, words in lines
        for word in words.replace(" ", "").split(",")
    }
    assert edges == {
        (before.name, after.name, move.name)
        for move, row in MOVES.items()
        for before, after in row.items()
        if before is not after
    }


class Life(RuleBasedStateMachine):
    """Heartbeat, handover, drain, engine and the batch's thread move one batch in any order.

    What must hold is kept beside the batch: who ended it, whether rows move, what the engine was told.
    A thread that would wait does not come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batch = held()
        self.work: Work | None = None
        self.ends = 0
        self.moving = self.stopped = self.published = self.committed = False
        self.engine_done = False
        self.steps = self.peace = self.asks = self.handovers = 0

    @initialize(peace=st.integers(0, 10))
    def nobody_ends_it_for_so_many_steps(self, peace: int) -> None:
        """Else most stories would be short."""
        self.peace = peace

    @rule()
    def time_passes(self) -> None:
        """So that a story may end early."""

    @precondition(lambda self: self.work is None and not self.moving)
    @rule()
    def thread_starts(self) -> None:
        if self.batch.runs:
            self.work = work()
            self.batch.attach(self.work)

    @precondition(lambda self: self.work is not None and not self.engine_done)
    @rule()
    def engine_is_done(self) -> None:
        self.engine_done = True
        self.batch.move(Move.LEAVE)

    @precondition(lambda self: self.engine_done and not self.moving and not self.published)
    @rule()
    def thread_runs_rows_again(self) -> None:
        if self.batch.move(Move.AGAIN) is not None:
            assert not self.stopped, "a stopped batch began again"
            self.engine_done = False
            self.work = work()
            self.batch.attach(self.work)

    @precondition(lambda self: self.engine_done and not self.moving and not self.published)
    @rule()
    def thread_publishes(self) -> None:
        if self.batch.move(Move.PUBLISH) is not None:
            assert self.ends == 0
        self.published = True

    @precondition(lambda self: self.published and not self.committed)
    @rule()
    def thread_commits(self) -> None:
        self.committed = True
        if self.batch.move(Move.COMMIT) is None:
            assert self.ends, "a part counts that nobody published"

    @precondition(lambda self: self.may_end() and not self.moving)
    @rule()
    def thread_ends(self) -> None:
        self.ended(self.batch.move(Move.END))

    @precondition(lambda self: self.may_end())
    @rule()
    def heartbeat_loses(self) -> None:
        lease = self.batch.lease
        assert self.batch.lose((lease.batch_id, lease.attempt - 1)) is None
        was = self.batch.lose((lease.batch_id, lease.attempt))
        assert was is None or not (self.moving or self.published)
        self.ended(was)

    @precondition(lambda self: self.may_end())
    @rule()
    def heartbeat_finds_the_job_over(self) -> None:
        was = self.batch.move(Move.UNWANT)
        assert was is None or not (self.moving or self.published)
        self.ended(was)

    @precondition(lambda self: self.may_end())
    @rule()
    def heartbeat_finds_a_thread_that_hangs(self) -> None:
        was = self.batch.move(Move.GIVE_UP)
        assert was is not State.COMMITTED or self.committed
        self.ended(was)

    @precondition(lambda self: not self.stopped)
    @rule()
    def drain_stops(self) -> None:
        self.batch.stop()
        self.stopped = True
        assert self.work is None or self.work.stopped.is_set()

    @precondition(lambda self: self.handovers < 3 and not self.moving)
    @rule()
    def handover_begins(self) -> None:
        self.handovers += 1
        self.moving = self.batch.move(Move.HAND_OVER) is not None
        if self.moving:
            assert (self.stopped, self.published, self.ends) == (False, False, 0)

    @precondition(lambda self: self.moving)
    @rule()
    def handover_is_done(self) -> None:
        assert self.batch.move(Move.HANDED_OVER) is not None, (
            "somebody moved a batch whose rows moved"
        )
        self.moving = False

    def may_end(self) -> bool:
        return self.steps > self.peace and self.asks < 6

    def ended(self, was: State | None) -> None:
        self.asks += 1
        if was is not None:
            assert not self.moving
            self.ends += 1

    @invariant()
    def it_ends_once(self) -> None:
        self.steps += 1
        assert self.ends == (self.batch.state is State.OVER)

    @invariant()
    def a_dying_child_waits_for_what_left_its_engine(self) -> None:
        if self.engine_done and not self.ends:
            assert self.batch.publishing

    @invariant()
    def a_stopped_batch_does_not_run(self) -> None:
        assert not (self.stopped and self.batch.runs)

    @invariant()
    def what_runs_in_an_engine_knows_of_a_stop(self) -> None:
        if self.work is not None and not self.engine_done and self.stopped:
            assert self.work.stopped.is_set()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=300, stateful_step_count=30)
