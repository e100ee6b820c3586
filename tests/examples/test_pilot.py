"""examples/pilot: an estimate, a pilot that asks, the whole job, a budget."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.examples.conftest import Example
from tests.integration.fleet import logs

ROWS, FAILING = 600, 12


def test_a_job_is_estimated_tried_run_and_held_to_its_budget(
    example: Callable[[str], Example],
) -> None:
    pilot = example("pilot")

    before = json.loads(pilot.nightshift("estimate", "job.yaml", "--json"))
    assert (before["rows"], before["batches"]) == (ROWS, 30)
    assert before["rows_per_engine_second"] is before["cost"] is before["finished_at"] is None
    assert any("--pilot" in note for note in before["notes"])
    assert not (pilot.folder / ".nightshift").exists()

    # Nobody can be asked here: the sample is run and shown, the rest is not run.
    said = pilot.nightshift("run", "job.yaml", "--pilot", "60", exit_code=3)
    assert "--yes says yes" in said
    assert "rows/s an engine" in said
    assert not (pilot.folder / "out").exists()
    [folder] = (pilot.folder / "out-pilot").iterdir()
    drawn = pq.read_table(folder / "rows.parquet").column("id").to_pylist()
    assert len(set(drawn)) == 60
    assert drawn != [f"r-{number:03}" for number in range(60)]
    tried = ds.dataset(folder / "out").to_table()
    assert sorted(tried.column("id").to_pylist()) == sorted(drawn)

    # The pilot is not run again; its sample is the same.
    said = pilot.nightshift("run", "job.yaml", "--pilot", "60", "--yes", exit_code=1)
    assert [path.name for path in (pilot.folder / "out-pilot").iterdir()] == [folder.name]
    found = re.search(r"cost +(\S+) \((\S+) to (\S+)\)", said)
    assert found is not None, said
    low, high = float(found[2]), float(found[3])
    done = pilot.status("receipts")
    assert (done["rows_done"], done["rows_failed"]) == (ROWS - FAILING, FAILING)
    assert abs(done["cost"] - done["engine_seconds"] / 100) < 1e-5
    # The machine may be busier now than it was: bounds of the order, not of the range.
    assert low / 4 < done["cost"] < high * 4
    attempts = pilot.status("receipts-pilot")
    assert attempts["rows_done"] + attempts["rows_failed"] == 60

    after = json.loads(pilot.nightshift("estimate", "job.yaml", "--workers", "2", "--json"))
    assert after["measured_from"] == "2 jobs with this engine"
    assert after["rows_measured"] == ROWS + 60
    pace = after["rows_per_engine_second"]
    assert pace["low"] < pace["middle"] < pace["high"]
    assert (
        after["seconds"]["middle"] * 2 * pace["middle"]
        == after["engine_seconds"]["middle"] * (pace["middle"])
    )


def test_a_job_pauses_at_its_budget_and_goes_on_with_a_larger_one(
    example: Callable[[str], Example],
) -> None:
    pilot = example("pilot")
    spec = pilot.folder / "job.yaml"
    spec.write_text(spec.read_text().replace("budget: 0.5", "budget: 0.01"))
    done = pilot.command("run", "job.yaml")
    assert done.returncode == 3, done.stdout + done.stderr + logs(pilot.folder)
    assert "reaches limits.budget 0.01" in " ".join(done.stdout.split())
    stopped = pilot.status("receipts")
    assert stopped["status"] == "paused"
    assert 0 < stopped["rows_done"] < ROWS - FAILING
    # In flight are twice the 64 rows that a function engine takes at once.
    rows_over = stopped["rows_done"] + stopped["rows_failed"]
    assert stopped["cost"] < 0.01 + 2 * 192 * stopped["cost"] / rows_over

    assert "has spent" in pilot.nightshift("run", "job.yaml", exit_code=2)
    spec.write_text(spec.read_text().replace("budget: 0.01", "budget: 5"))
    pilot.nightshift("run", "job.yaml", exit_code=1)
    assert pilot.status("receipts")["rows_done"] == ROWS - FAILING


def test_estimate_pilots_on_this_machine_and_submits_nothing(
    example: Callable[[str], Example],
) -> None:
    pilot = example("pilot")
    done = subprocess.run(
        [sys.executable, "-m", "producer.cli", "estimate", "job.yaml", "--pilot", "40", "--json"],
        cwd=pilot.folder,
        env=pilot.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr + logs(pilot.folder)
    made = json.loads(done.stdout)
    assert made["measured_from"] == "the pilot (job 1)"
    assert made["rows_measured"] == 40
    assert not (pilot.folder / "out").exists()
