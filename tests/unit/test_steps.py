"""The steps of a run: what processes note, and which way to the first row the table shows."""

import io
import logging
import multiprocessing
import time
from pathlib import Path

import pytest
from rich.console import Console

from nightshift.common.telemetry import step_table, steps
from nightshift.common.telemetry.steps import Reached, Step, StepFile
from nightshift.worker.telemetry import engine_steps
from nightshift.worker.telemetry.engine_steps import ChildSteps, note_process
from nightshift.worker.telemetry.recorder import EngineLoaded

WHOLE = [
    Reached(Step.BEGUN, 0),
    Reached(Step.SERVERS, 2),
    Reached(Step.WORKER, 3, supervisor="s"),
    Reached(Step.CHILD, 4, supervisor="s", worker_id="w"),
    Reached(Step.PROCESS, 10, "EngineCore", "s", "w"),
    Reached(Step.PROCESS, 20, "VllmWorker-0", "s", "w"),
    Reached(Step.READY, 30, supervisor="s", worker_id="w"),
    Reached(Step.FIRST_ROW, 31, supervisor="s", worker_id="w"),
    Reached(Step.OVER, 40),
    Reached(Step.CLOSED, 42, supervisor="s", worker_id="w"),
    Reached(Step.LEFT, 43),
]


def of_child(step: Step, at: float, worker_id: str = "w", name: str = "") -> Reached:
    return Reached(step, at, name, "s", worker_id)


@pytest.mark.parametrize(
    ("noted", "way"),
    [
        ([], []),
        (reversed(WHOLE), WHOLE),
        # Another child was slower, or died before its first row.
        ([*WHOLE, of_child(Step.CHILD, 3.5, "x"), of_child(Step.READY, 29, "x")], WHOLE),
        ([*WHOLE, of_child(Step.FIRST_ROW, 32, "x"), of_child(Step.CLOSED, 50, "x")], WHOLE),
        # The last of the processes of one engine is the one that was waited for.
        ([*WHOLE, of_child(Step.PROCESS, 19, name="VllmWorker-1")], WHOLE),
        # A pilot has the first row; the whole job is over later.
        ([*WHOLE, Reached(Step.SUBMITTED, 35), Reached(Step.OVER, 34)], WHOLE),
        # No row was answered: the first child shows how far it came.
        (
            [of_child(Step.CHILD, 2, "x"), of_child(Step.CHILD, 1), of_child(Step.READY, 5)],
            [of_child(Step.CHILD, 1), of_child(Step.READY, 5)],
        ),
    ],
)
def test_the_way_is_that_of_the_child_with_the_first_row(
    noted: list[Reached], way: list[Reached]
) -> None:
    assert step_table.way(noted) == way


def test_a_file_gives_the_steps_of_one_run_back(tmp_path: Path) -> None:
    path = steps.checked(tmp_path / "profile.jsonl")
    StepFile(path).note(Step.BEGUN, at=5.0)
    StepFile(path).note(Step.READ, at=10.0)
    StepFile(path, {"supervisor": "s"}).note(Step.WORKER, at=11.0)
    child = StepFile(path, {"supervisor": "s", "worker_id": "w"})
    child.note(Step.PROCESS, at=12.0, name="EngineCore")
    StepFile(path, {"supervisor": "other"}).note(Step.WORKER, at=13.0)

    assert step_table.read(path, "s", since=10.0) == [
        Reached(Step.READ, 10.0),
        Reached(Step.WORKER, 11.0, supervisor="s"),
        Reached(Step.PROCESS, 12.0, "EngineCore", "s", "w"),
    ]
    assert len(step_table.read(path)) == 5


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": "READ", "at": 1',
        b'{"step": "READ"}',
        b'{"at": 11.0}',
        b'{"step": "READ", "at": "now"}',
        b'{"step": ["READ"], "at": 11.0}',
        b'{"step": "OTHER", "at": 11.0}',
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        b"",
    ],
)
def test_a_line_that_is_no_step_is_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "profile.jsonl"
    path.write_bytes(line + b"\n")
    StepFile(path).note(Step.READ, at=10.0)
    steps.append(path, '{"step": "SERVERS", "at": 11, "name": null, "other": 1}\n')
    assert step_table.read(path) == [Reached(Step.READ, 10.0), Reached(Step.SERVERS, 11.0)]


def test_without_a_file_nothing_is_noted_and_a_full_disk_stops_nobody() -> None:
    StepFile(None).note(Step.BEGUN)
    StepFile(Path("/dev/full")).note(Step.BEGUN)


def test_a_process_begins_before_it_looks() -> None:
    began = steps.process_began()
    assert time.time() - 3600 * 24 < began <= time.time()
    assert abs(steps.process_began() - began) < 0.5


def test_vllm_says_when_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "EngineCore")
    path = tmp_path / "profile.jsonl"
    try:
        note_process(StepFile(path))
        log = logging.getLogger("vllm.v1.engine.core")
        log.warning("Starting to load model %s...", "m")
        log.warning("anything else")
        logging.getLogger("other").warning("Loading weights took %.2f seconds", 1.0)
        log.warning("init engine (profile, create kv cache, warmup model) took %.2f s", 1.0)
    finally:
        logging.setLogRecordFactory(before)
    noted = step_table.read(path)
    assert [(each.step, each.name) for each in noted] == [
        (Step.PROCESS, "EngineCore"),
        (Step.LOAD, ""),
        (Step.WARM_UP, ""),
    ]
    assert set(engine_steps.VLLM_SAYS.values()) == {Step.LOAD, Step.WEIGHTS, Step.WARM_UP}


def test_a_record_can_be_copied_where_steps_are_noted(tmp_path: Path) -> None:
    """With `--profile` each line of a child's log was once the traceback of an error in logging."""
    before = logging.getLogRecordFactory()
    try:
        note_process(StepFile(tmp_path / "profile.jsonl"))
        copy = logging.makeLogRecord({"name": "child", "msg": "draining"})
    finally:
        logging.setLogRecordFactory(before)
    assert (copy.name, copy.getMessage()) == ("child", "draining")


def test_a_child_notes_its_first_row_once(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    child = ChildSteps(StepFile(path, {"worker_id": "w"}))
    child.engine_loaded(EngineLoaded("vllm", "0.32", 1, 1, 1.0))
    for _ in range(3):
        child.rows_left()
    assert [each.step for each in step_table.read(path)] == [Step.READY, Step.FIRST_ROW]


def test_the_table_says_when_and_how_long() -> None:
    out = io.StringIO()
    step_table.show(WHOLE, Console(file=out, width=100))
    lines = [line.split("│")[1:-1] for line in out.getvalue().splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == ["command begun", "0.0", "", ""]
    assert ["VllmWorker-0 begun", "20.0", "10.0", "imports"] in cells
    assert cells[-1] == ["all ended", "43.0", "1.0", "leaving"]
    nothing = io.StringIO()
    step_table.show([], Console(file=nothing))
    assert nothing.getvalue() == ""
