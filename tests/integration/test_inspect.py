"""Commands that look into the fleet, over a real ledger: workers, top, history, explain, doctor, logs."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from nightshift.common.ledger.batches import dispatch, leasing
from nightshift.common.ledger.fleet import slots, workers
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.common.ledger.jobs import jobs
from nightshift.producer.cli.app import app
from tests.support import homes
from tests.support.world import World, become_ready, child_of, make_ready

Command = Callable[..., Result]


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command on this test's ledger."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def said(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def kinds(result: Result) -> list[str]:
    return [each["kind"] for each in said(result)["reasons"]]


def report(world: World, slot: SlotReport) -> None:
    with world.ledger.transaction() as connection:
        machine = Machine("s", "default", "gpu-7")
        slots.report(connection, machine, [slot], idle_seconds=60, seen_every_seconds=0)


def test_explain_follows_a_job_from_its_submit_to_its_end(
    world: World, nightshift: Command
) -> None:
    job = world.job(2, 2)
    explain = ("explain", str(job), "--json")
    assert kinds(nightshift(*explain)) == ["no_reaper", "no_worker"]
    with world.ledger.transaction() as connection:
        dispatch.beat(connection, "r-1", "here", "0.1.0")
    assert kinds(nightshift(*explain)) == ["no_worker"]
    child = child_of(world.specs[job], 1)
    world.run(workers.register, child)
    report(world, SlotReport(0, "", child.id, child.engine_key, leaves=False))
    assert kinds(nightshift(*explain)) == ["loading"]
    become_ready(world, child)
    report(world, SlotReport(0, "", child.id, child.engine_key, leaves=False))
    assert kinds(nightshift(*explain)) == ["soon"]
    world.admit(job)
    first, second = world.claim(job, owner=child.id)
    shown = nightshift("explain", str(job)).stdout
    assert shown.startswith(f"job {job} (shout): 2 batches are at work on 1 worker")
    world.run(jobs.pause, job, "lunch")
    shown = nightshift("explain", str(job)).stdout
    assert "it is paused: lunch; 2 batches end as usual" in shown
    assert f"  nightshift resume {job}\n" in shown
    for lease in (first, second):
        world.commit(lease)
    world.run(jobs.resume, job)
    nightshift("pause", str(job))
    sentence = said(nightshift(*explain))["reasons"][0]["sentence"]
    assert re.fullmatch(r"it is paused by \w+ on \S+, at \d\d:\d\d:\d\d", sentence)


def test_explain_and_workers_know_cordons(world: World, nightshift: Command) -> None:
    job = world.job(2)
    child = child_of(world.specs[job], 1)
    make_ready(world, child)
    report(world, SlotReport(0, "", child.id, child.engine_key, leaves=False))
    with world.ledger.transaction() as connection:
        dispatch.beat(connection, "r-1", "here", "0.1.0")
    assert nightshift("cordon", "gpu-7").exit_code == 0
    [reason] = said(nightshift("explain", str(job), "--json"))["reasons"]
    assert (reason["kind"], reason["command"]) == ("cordoned", "nightshift uncordon gpu-7")
    assert "ready, cordoned" in nightshift("workers").stdout


def test_history_says_of_each_attempt_where_it_ran_how_it_ended_and_why(
    world: World, nightshift: Command
) -> None:
    job = world.job(2, 2, 2)
    child = child_of(world.specs[job], 1)
    make_ready(world, child)
    world.admit(job)
    given_back, done, lost = world.claim(job, owner=child.id)
    with world.ledger.transaction() as connection:
        leasing.release(connection, [given_back], error="disk full")
    world.commit(done)
    with world.ledger.transaction() as connection:
        workers.end(connection, child.id, died="its engine died")
    nightshift("set", str(job), "--priority", "5")
    seen = said(nightshift("history", str(job), "--json"))
    assert [each["action"] for each in seen["changes"]] == ["set"]
    assert seen["outcomes"] == {"done": 1, "lost": 1, "released": 1}
    why = {each["batch"]: each["why"] for each in seen["attempts"]}
    assert why == {
        given_back.batch_id: "disk full",
        done.batch_id: "committed",
        lost.batch_id: "its engine died",
    }
    assert all(each["host"] and each["seconds"] >= 0 for each in seen["attempts"])
    only = said(nightshift("history", str(job), "--outcome", "lost", "--json"))["attempts"]
    assert [each["batch"] for each in only] == [lost.batch_id]
    shown = nightshift("history", str(job), "-n", "1").stdout
    assert "1 done, 1 lost, 1 released" in shown
    assert "priority 0 -> 5" in shown
    assert "2 more; -n 0 shows all" in shown
    assert "more; -n 0" not in nightshift("history", str(job), "--outcome", "lost").stdout
    refused = nightshift("history", str(job), "--outcome", "burnt")
    assert refused.exit_code == 2
    assert "is not one of done" in refused.output


def test_workers_and_top_show_slots_with_gpus_engines_jobs_and_rates(
    world: World, nightshift: Command
) -> None:
    job = world.job(2)
    child = child_of(world.specs[job], 1)
    make_ready(world, child)
    figures = json.dumps(
        [{"gpu": "3", "busy": 0.93, "memory_used": 70 * 2**30, "memory_total": 80 * 2**30}]
    )
    slot = SlotReport(0, "3", child.id, child.engine_key, leaves=False, gpu_figures=figures)
    report(world, slot)
    world.admit(job)
    world.claim(job, owner=child.id)
    for command in ("workers", "top"):
        shown = nightshift(command).stdout
        assert "3 93 % 70/80 GiB" in shown
        assert f"{job} shout" in shown
        seen = said(nightshift(command, "--json"))
        [worker] = seen["workers"]
        assert (worker["host"], worker["state"], worker["rows_leased"]) == ("gpu-7", "ready", 2)
    assert [each["job"] for each in seen["jobs"]] == [job]
    assert [each["pool"] for each in seen["pools"]] == ["default"]
    assert said(nightshift("workers", "--pool", "other", "--json"))["workers"] == []


def test_the_doctor_says_what_is_well_and_what_to_do(
    world: World, nightshift: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ROOTS", f"{tmp_path},{file}/out")
    sick = nightshift("doctor", "--json")
    assert sick.exit_code == 1
    checks = [(each["check"], each["health"]) for each in json.loads(sick.stdout)]
    assert ("migrations", "ok") in checks
    assert ("clock", "ok") in checks
    assert ("reapers", "wrong") in checks
    assert [health for name, health in checks if name == "storage"] == ["ok", "note"]
    for number in (1, 2):
        with world.ledger.transaction() as connection:
            dispatch.beat(connection, f"r-{number}", "here", "0.1.0")
    well = nightshift("doctor")
    assert well.exit_code == 0, well.output
    assert re.search(r"^ok +reapers +2 alive, on here$", well.stdout, re.MULTILINE)
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    away = nightshift("doctor")
    assert away.exit_code == 1
    assert re.search(r"^wrong +database ", away.stdout, re.MULTILINE)


def test_logs_are_those_of_this_folder_or_of_one_job(
    world: World, nightshift: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "kubectl logs" in nightshift("logs").output
    monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL")
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path))
    assert "there are no logs in" in nightshift("logs").output
    (tmp_path / "worker.log").write_text("one job_id=7\ntwo job_id=71\nthree\n")
    (tmp_path / "reaper.log").write_text('{"event": "four", "job_id": 7}\n')
    shown = nightshift("logs", "-n", "1").stdout.splitlines()
    assert shown == ['reaper  {"event": "four", "job_id": 7}', "worker  three"]
    from nightshift.producer.local import log_files

    of_job = list(log_files.lines(tmp_path, 7, 0, follow=False))
    assert of_job == ['reaper  {"event": "four", "job_id": 7}', "worker  one job_id=7"]


def test_the_version_is_said() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"nightshift \d+\.\d+\.\d+\S*\n", result.stdout)


WITHOUT_TABLES = {
    *("run", "watch", "console", "reaper", "serve", "alive", "logs", "collect"),
    *("init", "completion", "schema", "__complete"),
}
"""Commands that show a live screen, one line, or lines as they were written."""


def test_every_command_that_prints_a_table_has_json() -> None:
    commands = dict(typer.main.get_command(app).commands)
    for group in [name for name, each in commands.items() if hasattr(each, "commands")]:
        below = commands.pop(group).commands
        commands |= {f"{group} {name}": command for name, command in below.items()}
    assert "key list" in commands
    without = {
        name
        for name, command in commands.items()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without - WITHOUT_TABLES == set()


def test_the_json_of_lists_has_what_their_tables_have(world: World, nightshift: Command) -> None:
    job = world.job(2)
    lease = world.lease(job)
    world.commit(lease, errors=[0])
    assert [each["job"] for each in said(nightshift("jobs", "--json"))] == [job]
    failed = said(nightshift("errors", str(job), "--json"))
    assert failed["kinds"] == {"truncated": 1}
    assert [row["row_index"] for row in failed["rows"]] == [0]
    world.run(jobs.pause, job)
    waited = nightshift("wait", str(job), "--json")
    assert waited.exit_code == 3
    assert json.loads(waited.stdout)["status"] == "paused"


def imported_of(heavy: list[str], *arguments: str, **environment: str) -> str:
    """Those of some modules that a command of a process of its own has imported at its end."""
    code = (
        "import sys\n"
        "from nightshift.producer.cli import app\n"
        f"sys.argv[1:] = {list(arguments)}\n"
        "try:\n    app.main()\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({heavy}) & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"]])
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    heavy = ["rich", "sqlalchemy", "psycopg", "pyarrow", "celery", "jinja2", "numpy", "alembic"]
    assert imported_of(heavy, *arguments).splitlines()[-1] == "[]"


NOT_TO_LOOK = [
    *("alembic", "celery", "duckdb", "fsspec", "jinja2", "jsonschema", "kombu", "numpy", "pyarrow"),
    *("redis", "starlette", "structlog", "uvicorn", "yaml", "nightshift.common.spec"),
    "nightshift.common.storage",
]
"""What no table of jobs needs. All of it together would take several times as long as `nightshift status`."""


@pytest.mark.parametrize("command", ["status", "jobs"])
def test_a_look_at_the_jobs_of_a_fleet_imports_neither_specs_nor_servers_nor_logs(
    world: World, database_url: str, command: str
) -> None:
    world.lease(world.job(2, name="looked-at"))
    found = imported_of([*NOT_TO_LOOK, "tenacity"], command, NIGHTSHIFT_DATABASE_URL=database_url)
    assert "looked-at" in found
    assert found.splitlines()[-1] == "[]"


def test_a_look_at_a_ledger_at_rest_imports_no_more_than_what_starts_its_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL", raising=False)
    homes.furnish(tmp_path / "home")
    found = imported_of(NOT_TO_LOOK, "status", NIGHTSHIFT_HOME=str(tmp_path / "home"))
    assert "no jobs yet" in found
    assert found.splitlines()[-1] == "[]"
