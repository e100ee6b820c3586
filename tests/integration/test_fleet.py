"""A fleet on real servers: workers come and go, jobs come in between, users pause and cancel."""

import json
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from nightshift.common.ledger.jobs.failure_limits import JUDGE_AFTER_ROWS
from tests.support.fleet import (
    RULES,
    Fleet,
    function_spec,
    kill_tree,
    logs,
    output_ids,
    wait_until,
    write_rows,
)

BROKEN = """
def slow(rows):
    if len(rows) == 1:
        is_let(rows)
    raise KeyError("nope")
"""

SLOW = {"backend": "function", "callable": "rules:slow"}


Ask = Callable[[str], list[tuple[Any, ...]]]


def submit(fleet: Fleet, name: str, rows: list[tuple[str, int]], **sections: Any) -> list[str]:
    ids = write_rows(fleet.folder / f"in-{name}", rows)
    sections = {"engine": SLOW, "batch": {"rows": 5}, **sections}
    spec = function_spec(name, fleet.folder / f"in-{name}", fleet.folder / name, **sections)
    done = fleet.command("submit", str(fleet.spec(spec)))
    assert done.returncode == 0, done.stderr
    return ids


def done_rows(ask: Ask, name: str) -> int:
    return int(ask(f"SELECT rows_done FROM job_progress WHERE name = '{name}'")[0][0])


def finished(fleet: Fleet, name: str, ids: list[str]) -> None:
    waited = fleet.command("wait", name)
    assert waited.returncode == 0, waited.stdout + waited.stderr + logs(fleet.folder)
    assert output_ids(fleet.folder / name) == ids
    checked = fleet.command("verify", name)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_a_reason_that_the_ledger_refuses_leaves_a_fixed_one_in_its_place(
    fleet: Fleet, ask: Ask, database_url: str
) -> None:
    engine = {"backend": "function", "callable": "rules:nothing_here"}
    submit(fleet, "refused", [("a.parquet", 4)], engine=engine)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE refusals ADD CHECK (error NOT LIKE '%nothing_here%')")
    fleet.worker()
    wait_until(lambda: ask("SELECT 1 FROM refusals"), what="a failed load in the ledger")
    assert "the ledger took no reason" in ask("SELECT error FROM refusals")[0][0]
    assert ask("SELECT concern FROM refusals") == [("job",)]
    said = (fleet.folder / "nightshift.worker.cli.0.log").read_text()
    assert said.index("engine_load_failed") < said.index("failed_load_not_stored")


@pytest.mark.slow
def test_workers_come_and_go_and_a_second_job_comes_in_between(fleet: Fleet, ask: Ask) -> None:
    fleet.let(30)
    first = submit(fleet, "first", [("a.parquet", 1500), ("b.jsonl", 1000)])
    fleet.reaper()
    fleet.reaper()
    one = fleet.worker()
    wait_until(lambda: done_rows(ask, "first") > 20, what="the first rows")
    fleet.worker()
    second = submit(fleet, "second", [("c.jsonl", 150)], priority=5)
    # Rows of the first job that are held already go before.
    wait_until(lambda: done_rows(ask, "second") > 10 or fleet.let(20), what="the second job")
    one.send_signal(signal.SIGTERM)
    assert one.wait(200) == 0
    kill_tree(fleet.worker())
    victim = fleet.worker()
    wait_until(
        lambda: ask("SELECT 1 FROM workers WHERE state = 'ready' OFFSET 1"), what="two workers"
    )
    kill_tree(victim)
    fleet.let()
    finished(fleet, "second", second)
    finished(fleet, "first", first)
    charged = ask("SELECT count(*) FROM batches WHERE failures > 0")
    assert charged == [(0,)]


@pytest.mark.slow
def test_a_drained_worker_keeps_its_finished_rows_and_holds_nothing(fleet: Fleet, ask: Ask) -> None:
    """All that it holds when it is told to leave, whose first call has not ended then."""
    fleet.environment["NIGHTSHIFT_DRAIN_SECONDS"] = "200"
    fleet.let(0)
    ids = submit(fleet, "drained", [("a.parquet", 200)], batch={"rows": 50})
    fleet.reaper()
    worker = fleet.worker("--profile", "profile.jsonl")
    wait_until(lambda: ask("SELECT 1 FROM attempts WHERE ended_at IS NULL"), what="a lease")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    draining = "SELECT 1 FROM workers WHERE state = 'draining'"
    wait_until(lambda: ask(draining), what="the drain")
    fleet.let()
    assert worker.wait(200) == 0
    assert ask("SELECT count(*) FROM batches WHERE state = 'leased'") == [(0,)]
    assert ask("SELECT count(*) FROM batches WHERE failures + losses > 0") == [(0,)]
    assert ask("SELECT count(*) FROM workers WHERE state <> 'ended'") == [(0,)]
    assert "first row answered" in logs(fleet.folder)
    fleet.worker()
    finished(fleet, "drained", ids)


@pytest.mark.slow
def test_a_paused_job_stands_still_and_a_resumed_one_goes_on(fleet: Fleet, ask: Ask) -> None:
    fleet.let(20)
    ids = submit(fleet, "paused", [("a.parquet", 1200)])
    fleet.reaper()
    fleet.worker()
    wait_until(lambda: done_rows(ask, "paused") > 0, what="the first rows")
    assert fleet.command("pause", "paused").returncode == 0
    assert fleet.command("wait", "paused").returncode == 3
    fleet.let()
    for state in ("leased", "queued"):
        query = f"SELECT count(*) FROM batches WHERE state = '{state}'"
        wait_until(lambda q=query: ask(q) == [(0,)], what=f"the end of what is {state}")
    stood = done_rows(ask, "paused")
    assert 0 < stood < 1200
    assert fleet.command("resume", "paused").returncode == 0
    finished(fleet, "paused", ids)


@pytest.mark.slow
def test_a_cancelled_job_lets_go_within_a_heartbeat_and_keeps_what_it_has(
    fleet: Fleet, ask: Ask
) -> None:
    fleet.let(20)
    submit(fleet, "cancelled", [("a.parquet", 2000)])
    fleet.reaper()
    fleet.worker()
    wait_until(lambda: done_rows(ask, "cancelled") > 0, what="the first rows")
    assert fleet.command("cancel", "cancelled").returncode == 0
    assert fleet.command("wait", "cancelled").returncode == 3
    manifest = json.loads((fleet.folder / "cancelled" / "_manifest.json").read_text())
    assert manifest["complete"] is False
    assert 0 < manifest["rows"] < 2000
    assert len(output_ids(fleet.folder / "cancelled")) == manifest["rows"]
    assert ask("SELECT count(*) FROM batches WHERE state IN ('leased', 'queued')") == [(0,)]
    assert fleet.command("verify", "cancelled").returncode == 0
    assert fleet.command("resume", "cancelled").returncode == 2


def test_a_broken_function_pauses_the_job_before_it_burns_the_night(fleet: Fleet, ask: Ask) -> None:
    """Rows wait for their commits, so that no slow disk lets more of them run."""
    (fleet.folder / "rules.py").write_text(f"{RULES}{BROKEN}")
    fleet.let(JUDGE_AFTER_ROWS + 5)
    submit(fleet, "broken", [("a.parquet", 3000)])
    fleet.reaper()
    fleet.worker()
    waited = fleet.command("wait", "broken")
    assert waited.returncode == 3
    assert "max_failed_fraction" in waited.stdout + waited.stderr
    assert ask("SELECT rows_failed < 1500 FROM job_progress") == [(True,)]


@pytest.mark.slow
def test_eta_is_null_before_the_first_commit_and_told_after_it(fleet: Fleet, ask: Ask) -> None:
    """How it is reckoned stands in test_ledger.py."""
    fleet.let(100)
    submit(fleet, "steady", [("a.parquet", 800)], batch={"rows": 20})
    assert fleet.status("steady")["eta_seconds"] is None
    fleet.reaper()
    fleet.worker()
    wait_until(lambda: done_rows(ask, "steady") >= 100, what="the first rows")
    assert fleet.status("steady")["eta_seconds"] > 0
