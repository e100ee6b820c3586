"""What a child counts, and how its supervisor adds up children that live and that ended."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from nightshift.common.settings import child_environment, load_settings
from nightshift.worker.supervisor.children import ChildConfig
from nightshift.worker.telemetry.counts import Counts, has_room
from nightshift.worker.telemetry.machine import FOLDERS_VARIABLE, ChildFolder, MachineMetrics
from nightshift.worker.telemetry.recorder import BatchCommitted, Recorder
from nightshift.worker.telemetry.stage import Stage
from nightshift.worker.telemetry.utilization import Utilization

LABELS = {"pool": "p", "engine": "function"}


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_rows_tokens_and_batches_are_counted_at_the_commit() -> None:
    registry = CollectorRegistry()
    recorder = Recorder(Counts(Utilization(4), "p", "function", 0, registry))
    recorder.batch_committed(BatchCommitted(1, 1, 9, 4, 5, 2, 30, 40, 0.2, whole=True))
    recorder.batch_committed(BatchCommitted(2, 1, 3, 0, 3, 0, 1, 1, 100, whole=False))
    recorder.batch_ended("released")
    recorder.batch_ended()
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 6
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="failed") == 2
    assert value(registry, "nightshift_tokens_total", **LABELS, kind="prompt") == 31
    assert value(registry, "nightshift_tokens_total", **LABELS, kind="output") == 41
    for outcome in ("done", "split", "released"):
        assert value(registry, "nightshift_batches_total", **LABELS, outcome=outcome) == 1
    assert value(registry, "nightshift_batch_seconds_bucket", **LABELS, le="0.25") == 1
    assert value(registry, "nightshift_batch_seconds_count", **LABELS) == 2


def test_the_time_of_an_engine_is_told_by_how_full_it_was() -> None:
    now = 0.0
    utilization = Utilization(4, lambda: now)
    registry = CollectorRegistry()
    counts = Counts(utilization, "p", "function", 3, registry)
    recorder = Recorder(utilization, counts)
    now = 1  # a second without work
    recorder.batches_claimed(2)
    now = 3  # two with work and no row
    recorder.rows_entered()
    now = 6  # three with a row
    recorder.rows_entered(3)
    counts.update()
    now = 10  # four with all that it can run
    recorder.stage_passed(Stage.READ, 1.5)
    counts.update()
    here = {**LABELS, "slot": "3"}
    spent = {
        state: value(registry, "nightshift_engine_seconds_total", **here, state=state)
        for state in ("full", "partial", "empty", "no_work")
    }
    assert spent == {"full": 4, "partial": 3, "empty": 2, "no_work": 1}
    assert value(registry, "nightshift_engine_rows", **here) == 4
    assert value(registry, "nightshift_stage_seconds_total", **LABELS, stage="read") == 1.5


COUNT = """
import os, signal, sys
from prometheus_client import Counter
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.recorder import BatchCommitted, EngineLoaded
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.telemetry.utilization import Utilization
recorder = Recorder(Counts(Utilization(8), "p", "function", int(sys.argv[1])))
recorder.engine_loaded(EngineLoaded("function", "1", 8, 16, 1.5))
rows = int(sys.argv[2])
recorder.batch_committed(BatchCommitted(1, 1, rows, 0, rows, 0, 0, 0, 1.0, whole=True))
recorder.leases_renewed(1, 0)
Counter("vllm:steps", "Not ours.").inc()
print("counted", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def child_counts(machine: MachineMetrics, name: str, slot: int, rows: int) -> None:
    """A child that counts rows and is killed."""
    environment = child_environment(load_settings(), **machine.child_starts(name, slot))
    ended = subprocess.run(
        [sys.executable, "-c", COUNT, str(slot), str(rows)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout == "counted\n", ended.stderr


@pytest.fixture
def machine(tmp_path: Path) -> MachineMetrics:
    return MachineMetrics("p", tmp_path)


def test_a_killed_child_keeps_its_counts_and_leaves_no_folder(
    machine: MachineMetrics, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    registry.register(machine)
    rows = {**LABELS, "outcome": "ok"}
    here = {**LABELS, "slot": "0"}
    machine.watch(lambda: ["ready", "free"])
    child_counts(machine, "w-1", 0, 7)
    assert value(registry, "nightshift_rows_total", **rows) == 7
    assert value(registry, "nightshift_engine_load_seconds", **here) == 1.5
    assert value(registry, "nightshift_children", pool="p", state="ready") == 1

    assert machine.child_ended("w-1", "died") == "function"
    assert list(tmp_path.iterdir()) == []
    assert value(registry, "nightshift_rows_total", **rows) == 7
    assert value(registry, "nightshift_engine_load_seconds", **here) is None
    assert value(registry, "nightshift_child_exits_total", pool="p", reason="died") == 1
    assert value(registry, "nightshift_child_exits_total", pool="p", reason="hung") == 0

    child_counts(machine, "w-2", 1, 5)
    assert value(registry, "nightshift_rows_total", **rows) == 12
    assert value(registry, "nightshift_batch_seconds_bucket", **LABELS, le="1.0") == 2
    machine.child_ended("w-2", "asked")
    assert value(registry, "nightshift_rows_total", **rows) == 12
    assert value(registry, "nightshift_batch_seconds_bucket", **LABELS, le="+Inf") == 2
    # vLLM's know no slot.
    for slot in ("0", "1"):
        assert value(registry, "vllm:steps_total", pool="p", slot=slot) == 1


def test_what_a_dead_child_held_and_a_load_that_failed_are_counted_at_the_report(
    machine: MachineMetrics,
) -> None:
    registry = CollectorRegistry()
    registry.register(machine)
    machine.reported("function", 3, "killed", load_failed=False)
    machine.reported("function", 2, None, load_failed=False)
    machine.reported(None, 0, "killed", load_failed=True)
    assert value(registry, "nightshift_batches_total", **LABELS, outcome="died") == 3
    assert value(registry, "nightshift_batches_total", **LABELS, outcome="released") == 2
    assert value(registry, "nightshift_engine_loads_total", pool="p", outcome="failed") == 1
    assert value(registry, "nightshift_engine_loads_total", pool="p", outcome="ready") == 0


def test_a_child_whose_files_are_spoiled_hides_no_other(
    machine: MachineMetrics, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    registry.register(machine)
    child_counts(machine, "w-1", 0, 7)
    machine.child_starts("w-2", 1)
    (tmp_path / "w-2" / "counter_1.db").write_bytes(b"\xff" * 100)
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 7


def test_a_child_that_ends_during_a_scrape_is_counted_once(
    machine: MachineMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    registry.register(machine)
    child_counts(machine, "w-0", 0, 7)
    names = [f"w-{number}" for number in range(7)]
    for name in names[1:]:
        machine.child_starts(name, 0)
        shutil.copytree(tmp_path / "w-0", tmp_path / name, dirs_exist_ok=True)
    read = ChildFolder.read

    def read_while_one_ends(child: ChildFolder) -> list[Any]:
        if child.path.name == "w-0" and len(names) > 1:
            machine.child_ended(names.pop(), "asked")
        return read(child)

    monkeypatch.setattr(ChildFolder, "read", read_while_one_ends)
    for living in range(6, 0, -1):
        assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 49
        assert len(names) == living


def test_what_a_living_child_counted_stays_when_its_files_cannot_be_read(
    machine: MachineMetrics, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    registry.register(machine)
    child_counts(machine, "w-1", 0, 7)
    (counters,) = (tmp_path / "w-1").glob("counter_*")
    for spoil in (lambda: counters.write_bytes(b"\xff" * 100), counters.unlink):
        assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 7
        spoil()
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 7
    shutil.rmtree(tmp_path)
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 7
    machine.child_ended("w-1", "died")
    assert value(registry, "nightshift_rows_total", **LABELS, outcome="ok") == 7


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    machine = MachineMetrics("p", tmp_path / "own")
    counts = machine.child_starts("w-1", 0)
    assert Path(counts[FOLDERS_VARIABLE]).is_dir()


def test_a_child_that_cannot_count_starts_without_and_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = MachineMetrics("p", tmp_path / "file")
    with capture_logs() as said:
        assert machine.child_starts("w-1", 0) == machine.child_starts("w-2", 0) == {}
    assert [line["event"] for line in said] == ["child_cannot_count"]
    assert machine.child_ended("w-1", "asked") is None


def test_nobody_counts_where_there_is_no_room(
    machine: MachineMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(free_blocks: int, blocks: int = 9) -> bool:
        found = SimpleNamespace(f_blocks=blocks, f_bavail=free_blocks, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda _: found)
        return has_room(tmp_path)

    assert told(256)
    assert told(0, blocks=0)  # a tmpfs without a limit
    assert not told(255)
    assert machine.child_starts("w-1", 0) == {}
    assert list(tmp_path.iterdir()) == []
    folder = str(tmp_path)
    with capture_logs() as said:
        assert Counts.in_folder(folder, Utilization(4), "p", "function", 0) is None
    assert [line["event"] for line in said] == ["no_room_to_count"]
    monkeypatch.undo()
    assert Counts.in_folder(folder, Utilization(4), "p", "function", 0) is not None


def test_a_child_is_told_to_count_on_its_command_line() -> None:
    config = ChildConfig("w", "s", "p", 0, "h", 0, "k", 1, 3, metrics="/counts")
    assert ChildConfig(**json.loads(json.dumps(asdict(config)))) == config
