"""The heartbeat: which threads hang in a stage."""

from nightshift.worker.heartbeat import StageWatch
from nightshift.worker.held_batch import Progress


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
