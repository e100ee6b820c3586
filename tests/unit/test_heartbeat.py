"""The heartbeat: which threads hang in a stage, and which batches a beat ends."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.worker.heartbeat import Beat, Heartbeat, StageWatch, _ended
from nightshift.worker.held_batch import GivenBack, HeldBatch, Progress, Reason, State
from tests.unit.test_window import LEASE


def hangs(watch: StageWatch, thread: Progress, *now: float) -> list[bool]:
    """What looks at these moments say of one thread."""
    return [thread in watch.look([thread], at) for at in now]


def test_a_thread_that_stands_still_in_a_stage_for_longer_than_the_timeout_hangs() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    with thread.stage():
        assert hangs(watch, thread, 100, 110, 120, 130, 131) == [False, False, False, False, True]


def test_a_move_within_the_stage_begins_the_count_anew() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    with thread.stage() as moved:
        for now in range(100, 1000, 20):
            assert hangs(watch, thread, now) == [False]
            moved()


def test_one_stage_after_the_other_is_a_move() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    for now in range(100, 1000, 20):
        with thread.stage():
            assert hangs(watch, thread, now) == [False]


def test_a_thread_that_waits_for_the_engine_or_the_ledger_hangs_in_no_stage() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    assert not any(hangs(watch, thread, *range(100, 1000, 20)))


def test_the_time_in_which_the_process_was_stopped_is_no_hang() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    with thread.stage() as moved:
        assert hangs(watch, thread, 100, 110, 5000) == [False, False, False]
        moved()
        assert hangs(watch, thread, 5010, 5020, 5030, 5040) == [False] * 4


def test_a_thread_without_a_batch_is_watched_until_it_leaves_its_stage() -> None:
    watch, thread = StageWatch(30, most_seconds=20), Progress()
    with thread.stage():
        watch.look([thread], 100)
        watch.look([], 120)
        assert watch.look([], 140) == {thread}
    assert watch.look([], 141) == set()


OWN = (LEASE.batch_id, LEASE.attempt)
OLDER = (LEASE.batch_id, LEASE.attempt - 1)


@pytest.mark.parametrize(
    ("state", "lost", "unwanted", "in_stage", "hung", "reason"),
    [
        (State.RUNNING, None, False, False, False, None),
        (State.RUNNING, OWN, False, False, False, Reason.LOST),
        (State.RUNNING, OWN, False, True, True, Reason.LOST),
        (State.RUNNING, OLDER, False, False, False, None),  # rows went away since it was asked
        (State.MOVING, OWN, False, False, True, None),
        (State.PUBLISHING, OWN, False, True, False, None),
        (State.PUBLISHING, OWN, False, True, True, Reason.HUNG),
        (State.STOPPED, None, True, False, False, Reason.UNWANTED),
        (State.LEFT, None, True, False, False, None),
        (State.PUBLISHING, None, True, False, False, None),  # the COMMIT decides
        (State.PUBLISHING, None, True, True, False, Reason.UNWANTED),
        (State.COMMITTED, None, False, True, True, Reason.HUNG),
        (State.OVER, OWN, True, True, True, None),
    ],
)
def test_which_batches_a_beat_ends_and_why(
    state: State,
    lost: tuple[int, int] | None,
    unwanted: bool,
    in_stage: bool,
    hung: bool,
    reason: Reason | None,
) -> None:
    batch = HeldBatch(LEASE, 1, state=state)
    batch.progress.in_stage = in_stage
    found = Beat(
        1, frozenset(), {batch: lost} if lost else {}, {batch} if unwanted else frozenset()
    )
    given = _ended(batch, found, is_hung=hung)
    assert given == (None if reason is None else GivenBack(batch, state, reason))
    assert batch.state is (state if reason is None else State.OVER)


@pytest.mark.parametrize("can_start", [True, False])
def test_a_lost_lease_is_counted_once_and_its_batch_is_given_back(
    monkeypatch: pytest.MonkeyPatch, can_start: bool
) -> None:
    """Also where no thread can be started: a batch that is over is ended by nobody else."""
    given, said = [], []
    done = threading.Event()

    def give_back(batches: Sequence[GivenBack]) -> None:
        given.extend(batches)
        done.set()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if not can_start:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    recorder = SimpleNamespace(
        lease_lost=lambda *lease: said.append(lease),
        leases_renewed=lambda *counts: said.append(counts),
    )
    one = SimpleNamespace(
        _watch=StageWatch(30, most_seconds=20),
        child=SimpleNamespace(recorder=recorder),
        give_back=give_back,
    )
    one._give_back_beside = lambda batches: Heartbeat._give_back_beside(one, batches)  # type: ignore[arg-type]
    batch, other = HeldBatch(LEASE, 1), HeldBatch(LEASE, 1, state=State.PUBLISHING)
    stop: Any = SimpleNamespace(stop=lambda: said.append("stopped"))
    batch.work = stop
    beat = Beat(0, lost={batch: OWN, other: OWN})
    for _ in range(2):
        Heartbeat._give_back(one, [batch, other], beat)  # type: ignore[arg-type]
        assert done.wait(60)
    assert given == [GivenBack(batch, State.RUNNING, Reason.LOST)]
    assert said == ["stopped", OWN, (0, 1), (0, 0)]
