"""What a child counts, and how its supervisor adds up children that live and that ended."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from common.settings import child_environment, load_settings
from worker.child_config import ChildConfig
from worker.machine_metrics import MachineMetrics
from worker.profile import Profile, Stage
from worker.tally import NO_TALLY, Ran, Tally

LABELS = {"pool": "p", "engine": "function"}


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_rows_tokens_and_batches_are_counted_at_the_commit() -> None:
    registry = CollectorRegistry()
    tally = Tally("p", "function", 0, registry)
    tally.committed(Ran(5, 2, 30, 40, 0.2, whole=True))
    tally.committed(Ran(3, 0, 1, 1, 100, whole=False))
    tally.ended("released")
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
    profile = Profile(4, lambda: now, lambda: 0.0)
    registry = CollectorRegistry()
    tally = Tally("p", "function", 3, registry)
    engine = profile.engine
    now = 1  # a second without work
    engine.claimed(2)
    now = 3  # two with work and no row
    engine.enter(1)
    now = 6  # three with a row
    engine.enter(3)
    tally.show(profile)
    now = 10  # four with all that it can run
    profile.add(Stage.READ, 1.5)
    tally.show(profile)
    here = {**LABELS, "slot": "3"}
    spent = {
        state: value(registry, "nightshift_engine_seconds_total", **here, state=state)
        for state in ("full", "partial", "empty", "no_work")
    }
    assert spent == {"full": 4, "partial": 3, "empty": 2, "no_work": 1}
    assert value(registry, "nightshift_engine_rows", **here) == 4
    assert value(registry, "nightshift_stage_seconds_total", **LABELS, stage="read") == 1.5


def test_no_tally_takes_everything_and_starts_no_thread() -> None:
    before = threading.active_count()
    NO_TALLY.committed(Ran(1, 0, 0, 0, 0, whole=True))
    NO_TALLY.follow(Profile(1))
    assert threading.active_count() == before


COUNT = """
import os, signal, sys
from prometheus_client import Counter
from worker.tally import Ran, Tally
tally = Tally("p", "function", int(sys.argv[1]))
tally.loaded(1.5, 8)
tally.committed(Ran(int(sys.argv[2]), 0, 0, 0, 1.0, whole=True))
tally.renewed(1, 0)
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


def test_a_child_is_told_to_count_on_its_command_line() -> None:
    config = ChildConfig("w", "s", "p", 0, "h", "k", 1, metrics=True)
    assert ChildConfig.from_argument(config.argument()) == config
