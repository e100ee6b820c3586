"""`nightshift run`: the whole fleet on one machine, and the same command after any crash."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest

from nightshift.common.telemetry import step_table
from nightshift.common.telemetry.steps import Step
from tests.support.fleet import (
    Fleet,
    function_spec,
    is_alive,
    kill_tree,
    logs,
    output_ids,
    runs,
    tree,
    wait_until,
    write_rows,
)
from tests.support.remote import Remote, answered, refused

MIXED = [("a.parquet", 100), ("b.jsonl", 57), ("c.parquet", 43)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    yield found
    found.end()


def test_a_mixed_dataset_comes_out_once_each_and_a_second_run_costs_nothing(fleet: Fleet) -> None:
    ids = write_rows(fleet.folder / "in", MIXED)
    output = fleet.folder / "out"
    spec = fleet.spec(function_spec("mixed", fleet.folder / "in", output, batch={"rows": 16}))

    profile = fleet.folder / "profile.jsonl"
    first = fleet.command("run", str(spec), "--profile", str(profile))
    assert first.returncode == 0, first.stderr + logs(fleet.folder)
    assert output_ids(output) == ids
    way = [each.step for each in step_table.way(step_table.read(profile))]
    engines_own = (Step.PROCESS, Step.LOAD, Step.WEIGHTS, Step.WARM_UP)
    assert way == [step for step in Step if step not in engines_own]
    assert "first row answered" in first.stdout
    manifest = json.loads((output / "_manifest.json").read_text())
    assert (manifest["rows"], manifest["complete"]) == (200, True)
    assert sorted(path.name for path in output.iterdir()) == sorted(
        [part["name"] for part in manifest["parts"]] + ["_manifest.json", "_owner.json"]
    )

    second = fleet.command("run", str(spec))
    assert second.returncode == 0, second.stderr
    assert not (fleet.folder / ".nightshift" / "processes").exists() or not list(
        (fleet.folder / ".nightshift" / "processes").iterdir()
    )

    checked = fleet.command("verify", "mixed")
    assert checked.returncode == 0, checked.stdout + checked.stderr

    changed = fleet.folder / "in" / "b.jsonl"
    changed.write_text(changed.read_text() + '{"id": "new", "text": "x"}\n')
    refused = fleet.command("run", str(spec))
    assert refused.returncode == 2
    assert "b.jsonl" in refused.stderr


def test_rows_that_fail_are_lines_with_an_error_and_exit_code_1(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 40)])
    output = fleet.folder / "out"
    engine = {"backend": "function", "callable": "rules:picky"}
    spec = fleet.spec(
        function_spec("picky", fleet.folder / "in", output, engine=engine, batch={"rows": 20})
    )
    done = fleet.command("run", str(spec))
    assert done.returncode == 1, done.stderr + logs(fleet.folder)
    assert len(output_ids(output)) == 40
    listed = fleet.command("errors", "picky")
    assert "function_error" in listed.stdout
    assert "a-17" in listed.stdout
    assert fleet.command("verify", "picky").returncode == 0


@pytest.mark.slow
def test_the_columns_of_a_function_are_in_every_part_also_where_no_row_had_an_answer(
    fleet: Fleet,
) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 60)])
    output = fleet.folder / "out"
    spec = fleet.spec(
        function_spec(
            "late",
            fleet.folder / "in",
            output,
            engine={"backend": "function", "callable": "rules:late"},
            batch={"rows": 10},
        )
    )
    assert fleet.command("run", str(spec)).returncode == 1
    table = ds.dataset(output, format="parquet").to_table().sort_by("row_index")
    assert table.column("loud").null_count == 30
    assert table.column("loud").to_pylist()[30] == "SAY A-30"
    assert fleet.command("verify", "late").returncode == 0


def test_a_function_that_cannot_be_imported_is_refused_before_a_server_starts(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 4)])
    engine = {"backend": "function", "callable": "rules:nothing_here"}
    spec = fleet.spec(
        function_spec("wrong", fleet.folder / "in", fleet.folder / "out", engine=engine)
    )
    done = fleet.command("run", str(spec))
    assert done.returncode == 2, done.stderr + logs(fleet.folder)
    assert "has no 'nothing_here'" in done.stderr
    assert not (fleet.folder / ".nightshift" / "worker.log").exists()


def test_a_load_error_with_text_that_postgres_cannot_hold_ends_the_job_like_any_other(
    fleet: Fleet,
) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 4)])
    (fleet.folder / "odd.py").write_text(
        "class Shout:\n    def __init__(self):\n"
        '        raise ValueError("no such \\0 and half of a \\ud800 here")\n'
        "    def __call__(self, rows):\n        return rows\n"
    )
    engine = {"backend": "function", "callable": "odd:Shout"}
    spec = fleet.spec(
        function_spec("odd", fleet.folder / "in", fleet.folder / "out", engine=engine)
    )
    done = fleet.command("run", str(spec), seconds=100)
    assert done.returncode == 3, done.stderr + logs(fleet.folder)
    assert "no such \\x00 and half of a \\ud800 here" in done.stdout + done.stderr
    log = (fleet.folder / ".nightshift" / "worker.log").read_text()
    assert log.count("engine_load_failed") == 1, "it can never work, and is tried once"


@pytest.mark.slow
def test_a_job_that_is_refused_whole_in_the_same_words_is_paused_with_them_and_runs_once_mended(
    fleet: Fleet,
) -> None:
    write_rows(fleet.folder / "in", [("a.parquet", 5)])
    with Remote().running() as remote:
        remote.behave = lambda _: refused(400, "no such form")
        fleet.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({remote.url: "k"})
        made = function_spec(
            "whole",
            fleet.folder / "in",
            fleet.folder / "out",
            task={"kind": "generate", "prompt": "{{ text }}"},
            engine={"backend": "openai", "model": "m", "base_url": remote.url},
            batch={"rows": 2},
        )
        spec = fleet.spec(made)
        done = fleet.command("run", str(spec))
        assert done.returncode == 3, done.stdout + done.stderr + logs(fleet.folder)
        sentence = "the engine refused all 5 rows that ran, in the same words: "
        assert sentence in done.stdout + done.stderr
        assert "400: no such form" in done.stdout + done.stderr
        assert fleet.status("whole")["status"] == "paused"
        assert sentence in fleet.command("explain", "whole").stdout
        remote.behave = answered
        again = fleet.command("run", str(spec))
        assert again.returncode == 0, again.stdout + again.stderr + logs(fleet.folder)
    assert len(output_ids(fleet.folder / "out")) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "alone"), [(1, False), (7, True)], ids=["whole tree", "run alone"]
)
def test_killed_at_random_moments_the_same_command_ends_with_each_row_once(
    fleet: Fleet, rows: int, alone: bool
) -> None:
    ids = write_rows(fleet.folder / "in", MIXED)
    output = fleet.folder / "out"
    engine = {"backend": "function", "callable": "rules:slow"}
    spec = fleet.spec(
        function_spec("killed", fleet.folder / "in", output, engine=engine, batch={"rows": rows})
    )
    chance = random.Random(rows * 2 + alone)
    for _ in range(3):
        process = fleet.start("nightshift.producer.cli", "run", str(spec))
        time.sleep(chance.uniform(0.3, 4.0))
        if alone:
            process.kill()
            process.wait()
        else:
            kill_tree(process)
    done = fleet.command("run", str(spec))
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    assert output_ids(output) == ids
    checked = fleet.command("verify", "killed")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_nothing_outlives_a_run_that_was_killed_alone(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", MIXED)
    engine = {"backend": "function", "callable": "rules:slow"}
    spec = fleet.spec(
        function_spec(
            "orphans", fleet.folder / "in", fleet.folder / "out", engine=engine, batch={"rows": 1}
        )
    )
    fleet.let(0)
    process = fleet.start("nightshift.producer.cli", "run", str(spec))
    wait_until(lambda: runs(process, "nightshift.worker.child"), what="a worker child")
    members = tree(process)
    assert len(members) > 5
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, members)), what="the end of every process")


@pytest.mark.slow
def test_two_slots_hold_batches_of_a_function_at_the_same_time(fleet: Fleet) -> None:
    """Neither can finish before both are seen: one child claims no more than its window."""
    ids = write_rows(fleet.folder / "in", [("a.parquet", 400)])
    engine = {"backend": "function", "callable": "rules:slow"}
    spec = fleet.spec(
        function_spec(
            "shared", fleet.folder / "in", fleet.folder / "out", engine=engine, batch={"rows": 4}
        )
    )
    fleet.let(0)
    process = fleet.start("nightshift.producer.cli", "run", str(spec), "--slots", "2")
    url = fleet.folder / ".nightshift" / "database_url"
    wait_until(url.exists, what="the ledger")
    holders = "SELECT count(DISTINCT worker_id) FROM attempts WHERE ended_at IS NULL"

    def holding() -> int:
        with psycopg.connect(url.read_text()) as connection:
            row = connection.execute(holders).fetchone()
        return int(row[0]) if row else 0

    wait_until(lambda: holding() == 2, what="leases of two children at once")
    fleet.let()
    assert process.wait(200) == 0
    assert output_ids(fleet.folder / "out") == ids


@pytest.mark.slow
def test_the_embedded_ledger_answers_psql_while_a_job_runs(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", MIXED)
    engine = {"backend": "function", "callable": "rules:slow"}
    spec = fleet.spec(
        function_spec(
            "asked", fleet.folder / "in", fleet.folder / "out", engine=engine, batch={"rows": 4}
        )
    )
    fleet.let(20)
    process = fleet.start("nightshift.producer.cli", "run", str(spec))
    url = fleet.folder / ".nightshift" / "database_url"

    def done_rows() -> int:
        if not url.exists():
            return 0
        with psycopg.connect(url.read_text()) as connection:
            found = connection.execute("SELECT to_regclass('job_progress')").fetchone()
            if found is None or found[0] is None:
                return 0
            row = connection.execute("SELECT rows_done FROM job_progress").fetchone()
        return int(row[0]) if row else 0

    wait_until(done_rows, what="progress in psql")
    fleet.let()
    assert process.wait(200) == 0


@pytest.mark.slow
def test_sigterm_drains_a_run_and_the_same_command_goes_on(fleet: Fleet) -> None:
    ids = write_rows(fleet.folder / "in", [("a.parquet", 3_000)])
    output = fleet.folder / "out"
    engine = {"backend": "function", "callable": "rules:slow"}
    spec = fleet.spec(
        function_spec("asked", fleet.folder / "in", output, engine=engine, batch={"rows": 4})
    )
    fleet.let(20)
    process = fleet.start("nightshift.producer.cli", "run", str(spec))
    wait_until(lambda: list(output.glob("part-*")), what="the first part")
    process.terminate()
    assert process.wait(200) == 130
    charged = json.loads(fleet.command("status", "asked", "--json").stdout)
    assert charged["batches_leased"] == 0
    assert 0 < charged["rows_done"] < 3_000
    fleet.let()
    assert fleet.command("run", str(spec)).returncode == 0
    assert output_ids(output) == ids
