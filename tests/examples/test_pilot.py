"""examples/pilot: an estimate, a pilot that asks, a budget that stops, and the whole job."""

import json
import math
from collections.abc import Callable

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.example import Example

pytestmark = pytest.mark.slow

ROWS, FAILING = 600, 12

HELD = 192
"""Rows that the function engine may have under way at most: its window, and a batch more."""


def test_a_job_is_estimated_tried_held_to_its_budget_and_run(
    example: Callable[[str], Example],
) -> None:
    pilot = example("pilot")
    spec = pilot.folder / "job.yaml"

    before = json.loads(pilot.nightshift("estimate", "job.yaml", "--json"))
    assert (before["rows"], before["batches"]) == (ROWS, 30)
    assert before["rows_per_engine_second"] is before["cost"] is before["finished_at"] is None
    assert any("--pilot" in note for note in before["notes"])
    assert not (pilot.folder / ".nightshift").exists()

    made = json.loads(
        pilot.command("estimate", "job.yaml", "--pilot", "60", "--workers", "2", "--json").stdout
    )
    assert (made["measured_from"], made["rows_measured"]) == ("the pilot (job 1)", 60)
    pace = made["rows_per_engine_second"]
    # So short a pilot tells the least speed, and the longest time.
    assert pace["low"] < (pace["high"] or math.inf)
    assert made["engine_seconds"]["high"] == pytest.approx(ROWS / pace["low"])
    assert made["seconds"]["high"] == pytest.approx(ROWS / pace["low"] / 2)
    assert made["cost"]["high"] == pytest.approx(made["engine_seconds"]["high"] / 100)
    [folder] = (pilot.folder / "out-pilot").iterdir()
    drawn = pq.read_table(folder / "rows.parquet").column("id").to_pylist()
    assert len(set(drawn)) == 60
    assert drawn != [f"r-{number:03}" for number in range(60)]
    tried = ds.dataset(folder / "out").to_table()
    assert sorted(tried.column("id").to_pylist()) == sorted(drawn)

    # Nobody can be asked here. The pilot is the one that was run before.
    said = pilot.nightshift("run", "job.yaml", "--pilot", "60", exit_code=3)
    assert "--yes says yes" in said
    assert "rows/s an engine" in said
    assert [path.name for path in (pilot.folder / "out-pilot").iterdir()] == [folder.name]
    assert not (pilot.folder / "out").exists()

    spec.write_text(spec.read_text().replace("budget: 0.5", "budget: 0.01"))
    said = pilot.nightshift("run", "job.yaml", "--pilot", "60", "--yes", exit_code=3)
    assert "reaches limits.budget 0.01" in " ".join(said.split())
    stopped = pilot.status("receipts")
    over = stopped["rows_done"] + stopped["rows_failed"]
    assert (stopped["status"], 0 < over < ROWS) == ("paused", True)
    assert stopped["cost"] < 0.01 + 2 * HELD * stopped["cost"] / over

    spec.write_text(spec.read_text().replace("budget: 0.01", "budget: 5"))
    pilot.nightshift("run", "job.yaml", "--pilot", "60", exit_code=1)
    done = pilot.status("receipts")
    assert (done["rows_done"], done["rows_failed"]) == (ROWS - FAILING, FAILING)
    assert done["cost"] == pytest.approx(done["engine_seconds"] / 100, abs=1e-5)
    assert done["cost"] > stopped["cost"]
