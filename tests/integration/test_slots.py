"""Slots of a real machine: a flood for one model, a second model, an urgent job of one batch."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fleet import Fleet, function_spec, logs, wait_until, write_rows

RULES = """
import time
from pathlib import Path

class Model:
    def __init__(self, name, load_seconds):
        time.sleep(load_seconds)
        self.waits = name != "urgent"

    def __call__(self, rows):
        while self.waits and Path(__file__).with_name("hold").exists():
            time.sleep(0.02)
        return [{"loud": row["text"].upper()} for row in rows]
"""
"""While `hold` is there, no call ends but those of the urgent job."""

SLOTS = 3

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    (fleet.folder / "rules.py").write_text(RULES)
    return fleet


def submit(fleet: Fleet, name: str, rows: int, **sections: Any) -> None:
    """A job with a model of its own."""
    source = fleet.folder / f"in-{name}"
    write_rows(source, [("a.parquet", rows)])
    engine = {
        "backend": "function",
        "callable": "rules:Model",
        "args": {"name": name, "load_seconds": 0.5},
    }
    spec = function_spec(
        name, source, fleet.folder / name, engine=engine, batch={"rows": 20}, **sections
    )
    done = fleet.command("submit", str(fleet.spec(spec)))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_worker_that_may_not_load_a_module_fails_no_job_that_another_can_run(
    fleet: Fleet, ask: Ask
) -> None:
    (fleet.folder / "hold").touch()
    for name in ("one", "two"):
        submit(fleet, name, 600)
    fleet.reaper()
    fleet.worker()
    wait_until(lambda: ask("SELECT FROM workers WHERE state = 'ready'"), what="a healthy worker")
    del fleet.environment["NIGHTSHIFT_ALLOWED_MODULES"]
    fleet.worker()
    refused = "SELECT FROM refusals WHERE error LIKE '%is not allowed%'"
    wait_until(lambda: ask(refused), what="a refusal")
    (fleet.folder / "hold").unlink()
    for name in ("one", "two"):
        waited = fleet.command("wait", name)
        assert waited.returncode == 0, waited.stdout + waited.stderr + logs(fleet.folder)


@pytest.mark.slow
def test_a_machine_that_fails_again_and_again_fails_no_job_that_another_still_loads(
    fleet: Fleet, ask: Ask
) -> None:
    """The second machine loads for as long as the first needs to fail three times."""
    go_on = fleet.folder / "go-on"
    for name, first in (
        ("bad", "raise ValueError('not on this machine')"),
        (
            "good",
            f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists():\n"
            "    time.sleep(0.1)",
        ),
    ):
        (fleet.folder / name).mkdir()
        (fleet.folder / name / "rules.py").write_text(f"{first}\n{RULES}")
    submit(fleet, "one", 40)
    fleet.reaper()
    for name in ("good", "bad"):
        fleet.environment["NIGHTSHIFT_CALLABLE_PATHS"] = str(fleet.folder / name)
        fleet.worker()
        wait_until(lambda: ask("SELECT FROM workers WHERE state = 'loading'"), what="a load")
    wait_until(lambda: ask("SELECT FROM engines WHERE load_failures >= 3"), what="failed loads")
    assert ask("SELECT state FROM jobs") == [("running",)]
    go_on.touch()
    waited = fleet.command("wait", "one")
    assert waited.returncode == 0, waited.stdout + waited.stderr + logs(fleet.folder)


def children(ask: Ask, name: str, state: str = "w.state") -> int:
    """The children that a job's model had so far, or has now in a state."""
    return int(
        ask(f"""
            SELECT count(*) FROM workers w JOIN jobs j USING (engine_key)
            WHERE j.name = '{name}' AND w.state = {state}
        """)[0][0]
    )


def rows_left(ask: Ask, name: str) -> int:
    return int(ask(f"SELECT rows_total - rows_done FROM job_progress WHERE name = '{name}'")[0][0])


@pytest.mark.slow
def test_a_second_model_shares_and_an_urgent_batch_takes_one_slot(fleet: Fleet, ask: Ask) -> None:
    ready = "'ready'"
    (fleet.folder / "hold").touch()
    submit(fleet, "flood", 2000)
    fleet.reaper()
    worker = fleet.worker("--slots", str(SLOTS))
    wait_until(lambda: children(ask, "flood", ready) == SLOTS, what="the flood in every slot")

    submit(fleet, "second", 2000)
    wait_until(lambda: children(ask, "second", ready) > 0, what="a slot of the second model")
    assert children(ask, "flood", ready) >= 1, logs(fleet.folder)

    submit(fleet, "urgent", 20, priority=5)
    wait_until(lambda: rows_left(ask, "urgent") == 0, what="the urgent job")
    wait_until(
        lambda: (
            not children(ask, "urgent", ready)
            and children(ask, "flood", ready) + children(ask, "second", ready) == SLOTS
        ),
        what="the slot of the urgent job with other work",
    )
    assert children(ask, "urgent") == 1, "one batch, one slot"
    assert ask("SELECT count(*) FROM batches WHERE failures + losses > 0") == [(0,)]

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(200) == 0
    assert ask("SELECT count(*) FROM slots") == [(0,)]
