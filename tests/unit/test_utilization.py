"""The profile: what it makes of stages and of rows in an engine, by a clock that the test sets."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.telemetry import steps
from nightshift.common.telemetry.metrics import Stage
from nightshift.worker.telemetry import report
from nightshift.worker.telemetry.recorder import Recorder, Subscriber
from nightshift.worker.telemetry.report import Figures, ProfileFile
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
def cpu() -> Clock:
    return Clock()


@pytest.fixture
def utilization(wall: Clock) -> Utilization:
    return Utilization(4, wall)


@pytest.fixture
def recorder(utilization: Utilization, wall: Clock, cpu: Clock) -> Recorder:
    return Recorder(utilization, clock=wall, cpu_clock=cpu)


def test_a_span_inside_another_is_taken_off_so_that_stages_add_up(
    recorder: Recorder, utilization: Utilization, wall: Clock, cpu: Clock
) -> None:
    with recorder.span(Stage.INFER):
        wall.now = 1
        with recorder.span(Stage.QUEUE):
            wall.now, cpu.now = 5, 0.25
        wall.now, cpu.now = 6, 1.25
    stages = utilization.figures()["stages"]
    assert stages["infer"] == {
        "calls": 1,
        "count": 1,
        "seconds": 2,
        "cpu_seconds": 1,
        "longest_seconds": 2,
    }
    assert (stages["queue"]["seconds"], stages["queue"]["cpu_seconds"]) == (4, 0.25)


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
    stages = utilization.figures()["stages"]
    assert stages["write"]["seconds"] == stages["read"]["seconds"] == 3


def test_a_pass_that_raises_costs_its_time_and_counts_no_batch(
    recorder: Recorder, utilization: Utilization, wall: Clock
) -> None:
    def lose() -> None:
        with recorder.span(Stage.COMMIT, 7):
            wall.now = 2
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        lose()
    with recorder.span(Stage.COMMIT) as span:
        span.count = 3
    commit = utilization.figures()["stages"]["commit"]
    assert (commit["calls"], commit["count"], commit["seconds"]) == (2, 3, 2)


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
    assert (engine.seconds, engine.rows, engine.row_seconds) == (8, 6, 27)
    assert (engine.fewer_seconds, engine.empty_seconds, engine.dry_seconds) == (5, 2, 3)


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

    recorder = Recorder(clock=fail, cpu_clock=fail)
    with recorder.span(Stage.READ) as span:
        span.count = 5
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

        def stage_passed(
            self, stage: Stage, seconds: float, cpu_seconds: float = 0.0, count: int = 1
        ) -> None:
            heard.append((stage, seconds, cpu_seconds, count))

    recorder = Recorder(Rows(), Both())
    recorder.rows_entered(3)
    recorder.stage_passed(Stage.INFER, 1.5, count=2)
    recorder.rows_left()
    assert heard == [("rows", 3), ("both", 3), (Stage.INFER, 1.5, 0.0, 2)]


def test_the_last_line_of_each_child_counts_and_only_of_the_asked_supervisor(
    tmp_path: Path, wall: Clock
) -> None:
    path = tmp_path / "profile.jsonl"
    for worker, supervisor, batches in (("a", "s", 1), ("b", "s", 5), ("c", "other", 100)):
        utilization = Utilization(4, wall)
        recorder = Recorder(utilization, clock=wall)
        file = ProfileFile(path, utilization, worker, supervisor)
        recorder.batches_claimed(1)
        for _ in range(2):
            with recorder.span(Stage.COMMIT, batches):
                wall.now += 1
            file.update()
    figures = Figures.read(path, "s")
    assert figures.children == 2
    assert figures.stages[Stage.COMMIT].count == 12
    assert figures.stages[Stage.COMMIT].longest_seconds == 1
    assert (figures.engine.concurrency, figures.engine.seconds) == (4, 4)
    assert figures.engine.fewer_seconds == 4
    shown = io.StringIO()
    report.show(figures, Console(file=shown, width=120))
    assert "commit" in shown.getvalue()
    assert "Of that time 100.0% with none" in shown.getvalue()
    assert "read" not in shown.getvalue()


@pytest.mark.parametrize(("rows", "is_said"), [(8, True), (4, True), (3, False)])
def test_a_job_of_fewer_rows_than_the_engine_takes_says_nothing_of_how_full_it_was(
    rows: int, is_said: bool, wall: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "profile.jsonl"
    utilization = Utilization(4, wall)
    utilization.batches_claimed(1)
    utilization.rows_entered(rows)
    wall.now += 1
    ProfileFile(path, utilization, "w", "s").update()
    shown = io.StringIO()
    report.show(Figures.read(path), Console(file=shown, width=200))
    assert f"{rows} rows in 1.0 s" in shown.getvalue()
    assert ("fewer than the 4 that it takes" in shown.getvalue()) is is_said


def test_children_that_never_came_up_leave_an_empty_summary(tmp_path: Path) -> None:
    path = steps.checked(tmp_path / "profile.jsonl")
    shown = io.StringIO()
    report.show(Figures.read(path), Console(file=shown))
    assert "never had work" in shown.getvalue()


def test_a_file_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be written to .*nowhere"):
        steps.checked(tmp_path / "nowhere" / "profile.jsonl")
