"""The main job, for real: the reviews through the whole fleet, killed while the engine loads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest

from nightshift.producer.embedded.home import home_lock
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from tests.support.fleet import Fleet, is_alive, logs, runs, tree, wait_until
from tests.support.models import ARGUMENTS, MODEL, reviews_spec

ROWS = 800

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path, NIGHTSHIFT_DRAIN_SECONDS="20")
    yield found
    found.end()


def ask(home: Path, query: str) -> list[tuple[Any, ...]]:
    with home_lock(home):
        server = EmbeddedPostgres()
        try:
            with psycopg.connect(server.start(home)) as connection:
                return connection.execute(query).fetchall()
        finally:
            server.stop()


def test_the_reviews_are_done_once_each_also_after_a_kill_while_the_engine_loads(
    fleet: Fleet,
) -> None:
    priced = {
        "backend": "vllm",
        "model": str(MODEL),
        "args": ARGUMENTS,
        "price_per_hour": 2.0,
        "price_per_million_prompt_tokens": 0.5,
    }
    made = reviews_spec(fleet.folder, ROWS, engine=priced, batch={"rows": 16})
    spec = fleet.spec(made)
    process = fleet.start("nightshift.producer.cli", "run", str(spec))
    wait_until(lambda: runs(process, "EngineCore"), seconds=300, what="the start of EngineCore")
    members = tree(process)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, members)), what="the end of every process")

    done = fleet.command("run", str(spec), seconds=500)
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    table = ds.dataset(fleet.folder / "out").to_table().to_pylist()
    assert sorted(row["row_index"] for row in table) == list(range(ROWS))
    assert len({row["review_id"] for row in table}) == ROWS
    right = sum(row["output"] == row["label"] for row in table)
    assert right >= 0.95 * ROWS
    ran = [row for row in table if row["answered_by"] is None]
    assert all(row["prompt_tokens"] > 0 and row["output_tokens"] > 0 for row in ran)
    assert all(row["prompt_tokens"] == 0 for row in table if row["answered_by"] is not None)
    checked = fleet.command("verify", "reviews")
    assert checked.returncode == 0, checked.stdout

    attempts = ask(
        fleet.folder / ".nightshift",
        """
        SELECT a.engine, (SELECT count(*) FROM attempts b
               WHERE b.worker_id = a.worker_id AND b.batch_id <> a.batch_id
                 AND b.claimed_at < a.ended_at AND b.ended_at > a.claimed_at)
        FROM attempts a WHERE outcome = 'done'
        """,
    )
    assert len(attempts) == ROWS // 16
    assert {engine for engine, _ in attempts} == {"vllm"}
    assert sum(overlapping > 0 for _, overlapping in attempts) > 0.9 * len(attempts)
    the_estimate_fits(fleet, spec, table)


def the_estimate_fits(fleet: Fleet, spec: Path, table: list[dict[str, Any]]) -> None:
    """What the model's own tokenizer and the ledger foretell is what the job did."""
    made = json.loads(fleet.command("estimate", str(spec), "--workers", "4", "--json").stdout)
    assert (made["prompts"]["unit"], made["prompts"]["sampled"]) == ("tokens", ROWS)
    assert made["prompts"]["longest_allowed"] == 512
    of = {row["row_index"]: row["prompt_tokens"] for row in table}
    tokens = sorted(of[row["row_index"]] or of[row["answered_by"]] for row in table)
    assert made["prompt_tokens_a_row"]["likely"] == pytest.approx(sum(tokens) / ROWS)
    assert (made["prompts"]["p50"], made["prompts"]["max"]) == (tokens[ROWS // 2 - 1], tokens[-1])
    answered = sum(row["output_tokens"] for row in table) / ROWS
    assert made["output_tokens_a_row"]["likely"] == pytest.approx(answered)
    done = fleet.status("reviews")
    # The first batch of each child is left out: in a job of so few batches it is a large part.
    assert made["engine_seconds"]["likely"] == pytest.approx(done["engine_seconds"], rel=0.4)
    assert made["seconds"]["likely"] == pytest.approx(made["engine_seconds"]["likely"] / 4)
    paid = done["engine_seconds"] * 2.0 / 3600 + sum(of.values()) * 0.5 / 1e6
    assert done["cost"] == pytest.approx(paid, rel=0.05)
    assert made["cost"]["likely"] == pytest.approx(paid, rel=0.4)


def test_a_job_that_the_usual_backend_does_not_take_runs_on_an_engine_with_another(
    fleet: Fleet,
) -> None:
    made = reviews_spec(fleet.folder, 20)
    args = {name: each for name, each in ARGUMENTS.items() if name != "structured_outputs_config"}
    made["engine"]["args"] = args
    made["task"]["output"] = {"regex": "(?i)positive|neutral|negative"}
    spec = fleet.spec(made)
    done = fleet.command("run", str(spec), seconds=500)
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    log = (fleet.folder / ".nightshift" / "worker.log").read_text()
    assert log.count("vllm_started") == 1, "found before the weights were read"
    [(stored,)] = ask(fleet.folder / ".nightshift", "SELECT spec->'engine'->'args' FROM jobs")
    assert stored == {**args, "structured_outputs_config": {"backend": "guidance"}}
    again = fleet.command("run", str(spec), seconds=100)
    assert again.returncode == 0, again.stderr
    assert "nothing ran" in again.stdout + again.stderr, "it is the same job"
