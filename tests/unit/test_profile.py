"""The profile: what it makes of stages and of rows in an engine, by a clock that the test sets."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.worker.telemetry import report
from nightshift.worker.telemetry.utilization import NO_PROFILE, EngineMeter, Profile, Stage
from nightshift.worker.telemetry.report import Figures, ProfileFile


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
def profile(wall: Clock, cpu: Clock) -> Profile:
    return Profile(4, wall, cpu)


def test_a_span_inside_another_is_taken_off_so_that_stages_add_up(
    profile: Profile, wall: Clock, cpu: Clock
) -> None:
    with profile.span(Stage.INFER):
        wall.now = 1
        with profile.span(Stage.QUEUE):
            wall.now, cpu.now = 5, 0.25
        wall.now, cpu.now = 6, 1.25
    stages = profile.figures()["stages"]
    assert stages["infer"] == {
        "calls": 1,
        "count": 1,
        "seconds": 2,
        "cpu_seconds": 1,
        "longest_seconds": 2,
    }
    assert (stages["queue"]["seconds"], stages["queue"]["cpu_seconds"]) == (4, 0.25)


def test_spans_of_two_threads_do_not_nest(profile: Profile, wall: Clock) -> None:
    def read() -> None:
        with profile.span(Stage.READ):
            wall.now += 3

    with profile.span(Stage.WRITE):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(10)
    stages = profile.figures()["stages"]
    assert stages["write"]["seconds"] == stages["read"]["seconds"] == 3


def test_a_pass_that_raises_costs_its_time_and_counts_no_batch(
    profile: Profile, wall: Clock
) -> None:
    def lose() -> None:
        with profile.span(Stage.COMMIT, 7):
            wall.now = 2
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        lose()
    with profile.span(Stage.COMMIT) as span:
        span.count = 3
    commit = profile.figures()["stages"]["commit"]
    assert (commit["calls"], commit["count"], commit["seconds"]) == (2, 3, 2)


def test_the_meter_splits_the_time_at_work_by_how_full_the_engine_was(wall: Clock) -> None:
    meter = EngineMeter(4, wall)
    wall.now = 10  # idle: nothing was claimed yet
    meter.claimed(2)
    wall.now = 11  # one second with no row: read and rendered
    meter.enter(6)
    wall.now = 14  # three full ones
    meter.leave(3)
    wall.now = 15  # one with three rows of four, though there was work
    meter.claimed(0)
    wall.now = 17  # two more, and none was admitted
    meter.leave(3)
    wall.now = 18  # the last commits
    meter.let_go()
    meter.let_go()
    wall.now = 100  # idle again
    sums = meter.sums()
    assert (sums.seconds, sums.rows, sums.row_seconds) == (8, 6, 27)
    assert (sums.fewer_seconds, sums.empty_seconds, sums.dry_seconds) == (5, 2, 3)


def test_a_child_is_at_work_between_two_claims_that_bring_something(wall: Clock) -> None:
    meter = EngineMeter(4, wall)
    meter.claimed(1)
    meter.let_go()
    wall.now = 2
    meter.claimed(1)
    assert meter.sums().empty_seconds == 2


def test_no_profile_keeps_nothing() -> None:
    with NO_PROFILE.span(Stage.READ) as span:
        span.count = 5
    NO_PROFILE.add(Stage.QUEUE, 1.0)
    NO_PROFILE.engine.claimed(1)
    NO_PROFILE.engine.enter()
    figures = NO_PROFILE.figures()
    assert not any(stage["calls"] for stage in figures["stages"].values())
    assert figures["engine"]["seconds"] == figures["engine"]["rows"] == 0


def test_the_last_line_of_each_child_counts_and_only_of_the_asked_supervisor(
    tmp_path: Path, wall: Clock
) -> None:
    path = tmp_path / "profile.jsonl"
    for worker, supervisor, batches in (("a", "s", 1), ("b", "s", 5), ("c", "other", 100)):
        profile = Profile(4, wall)
        file = ProfileFile(path, profile, worker, supervisor)
        profile.engine.claimed(1)
        for _ in range(2):
            with profile.span(Stage.COMMIT, batches):
                wall.now += 1
            file.finish()
    figures = Figures.of(list(report.read(path, "s").values()))
    assert figures.children == 2
    assert figures.stages[Stage.COMMIT].count == 12
    assert figures.stages[Stage.COMMIT].longest_seconds == 1
    assert (figures.engine.concurrency, figures.engine.seconds) == (4, 4)
    assert figures.fewer_share == 1
    shown = io.StringIO()
    report.show(figures, Console(file=shown, width=120))
    assert "commit" in shown.getvalue()
    assert "100.0% of that time" in shown.getvalue()
    assert "read" not in shown.getvalue()


def test_children_that_never_came_up_leave_an_empty_summary(tmp_path: Path) -> None:
    path = report.checked(tmp_path / "profile.jsonl")
    shown = io.StringIO()
    report.show(Figures.of(list(report.read(path).values())), Console(file=shown))
    assert "never had work" in shown.getvalue()


def test_a_file_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be written to .*nowhere"):
        report.checked(tmp_path / "nowhere" / "profile.jsonl")
