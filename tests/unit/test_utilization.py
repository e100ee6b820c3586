"""What a child measures of stages and of rows in its engine, by a clock that the test sets."""

import threading
from pathlib import Path

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.telemetry import steps
from nightshift.worker.telemetry.recorder import Recorder, Subscriber
from nightshift.worker.telemetry.stage import Stage
from nightshift.worker.telemetry.utilization import Utilization


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
def utilization(wall: Clock) -> Utilization:
    return Utilization(4, wall)


@pytest.fixture
def recorder(utilization: Utilization, wall: Clock) -> Recorder:
    return Recorder(utilization, clock=wall)


def test_a_span_inside_another_is_taken_off_so_that_stages_add_up(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    with recorder.span(Stage.INFER):
        wall.now = 1
        with recorder.span(Stage.QUEUE):
            wall.now = 5
        wall.now = 6
    stages = utilization.seconds()
    assert (stages["infer"], stages["queue"]) == (2, 4)


def test_spans_of_two_threads_do_not_nest(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    def read() -> None:
        with recorder.span(Stage.READ):
            wall.now += 3

    with recorder.span(Stage.WRITE):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(100)
    stages = utilization.seconds()
    assert stages["write"] == stages["read"] == 3


def test_a_pass_that_raises_costs_its_time(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    def lose() -> None:
        with recorder.span(Stage.COMMIT):
            wall.now = 2
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        lose()
    assert utilization.seconds()["commit"] == 2


def test_the_meter_splits_the_time_at_work_by_how_full_the_engine_was(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    wall.now = 10  # idle: nothing was claimed yet
    recorder.batches_claimed(2)
    wall.now = 11  # one second with no row: read and rendered
    recorder.rows_entered(6)
    wall.now = 14  # three full ones
    recorder.rows_left(3)
    wall.now = 15  # one with three rows of four, though there was work
    recorder.batches_claimed(0)
    wall.now = 17  # two more, and none was admitted
    recorder.rows_left(3)
    wall.now = 18  # the last commits
    recorder.batch_ended()
    recorder.batch_ended()
    wall.now = 100  # idle again
    engine = utilization.occupancy()
    assert (engine.seconds, engine.fewer_seconds, engine.empty_seconds) == (8, 5, 2)
    assert engine.no_work_seconds == 92


def test_a_child_is_at_work_between_two_claims_that_bring_something(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    recorder.batches_claimed(1)
    recorder.batch_ended()
    wall.now = 2
    recorder.batches_claimed(1)
    assert utilization.occupancy().empty_seconds == 2


def test_without_a_subscriber_no_clock_is_read_and_nothing_happens() -> None:
    def fail() -> float:
        raise AssertionError("read")

    recorder = Recorder(clock=fail)
    with recorder.span(Stage.READ):
        pass
    recorder.stage_passed(Stage.READ, 1.0)
    recorder.rows_entered()


def test_each_subscriber_hears_the_events_that_it_has_a_method_for() -> None:
    heard: list[object] = []

    class Rows(Subscriber):
        def rows_entered(self, rows: int = 1) -> None:
            heard.append(("rows", rows))

    class Both(Subscriber):
        def rows_entered(self, rows: int = 1) -> None:
            heard.append(("both", rows))

        def stage_passed(self, stage: Stage, seconds: float) -> None:
            heard.append((stage, seconds))

    recorder = Recorder(Rows(), Both())
    recorder.rows_entered(3)
    recorder.stage_passed(Stage.INFER, 1.5)
    recorder.rows_left()
    assert heard == [("rows", 3), ("both", 3), (Stage.INFER, 1.5)]


def test_a_file_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be written to .*nowhere"):
        steps.checked(tmp_path / "nowhere" / "profile.jsonl")
