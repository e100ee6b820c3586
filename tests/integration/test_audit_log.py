"""Each change that somebody asks for leaves one row that says who asked, and one line of answer."""

import json
import os
import pwd
import socket
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.ledger import audit_log
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.schema import SCHEMA
from nightshift.producer.cli.app import app
from tests.support.world import World


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def rows(world: World) -> Callable[[int], list[tuple[object, ...]]]:
    def of(job_id: int) -> list[tuple[object, ...]]:
        return [(row["action"], row["detail"]) for row in world.run(audit_log.of_job, job_id)]

    return of


def test_pause_resume_and_cancel_say_what_changed_and_who_did_it(
    world: World,
    nightshift: Callable[..., Result],
    rows: Callable[[int], list[tuple[object, ...]]],
) -> None:
    job_id = world.job(4)
    paused = nightshift("pause", "shout")
    assert paused.stdout == (
        f"job {job_id} (shout): state running -> paused; `nightshift resume {job_id}` continues the job\n"
    )
    again = json.loads(nightshift("pause", "shout", "--json").stdout)
    assert (again["changed"], again["job"]) == ({}, job_id)
    resumed = json.loads(nightshift("resume", "shout", "--json").stdout)
    assert resumed["changed"] == {"state": {"old": "paused", "new": "running"}}
    assert nightshift("cancel", str(job_id)).exit_code == 0
    assert rows(job_id) == [
        ("pause", {"state": ["running", "paused"]}),
        ("resume", {"state": ["paused", "running"]}),
        ("cancel", {"state": ["running", "cancelled"]}),
    ]
    [row] = {(row["who"], row["host"]) for row in world.run(audit_log.of_job, job_id)}
    assert row == (pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname())


def test_a_refused_change_leaves_no_row(
    world: World,
    nightshift: Callable[..., Result],
    rows: Callable[[int], list[tuple[object, ...]]],
) -> None:
    job_id = world.job(4)
    world.run(jobs.cancel, job_id)
    assert nightshift("pause", str(job_id)).exit_code == 2
    assert rows(job_id) == []


def test_what_the_system_does_by_itself_leaves_no_row(
    world: World, rows: Callable[[int], list[tuple[object, ...]]]
) -> None:
    job_id = world.job(4)
    world.run(jobs.pause, job_id, "a budget")
    assert rows(job_id) == []


def test_a_migration_is_in_the_log_once(world: World, nightshift: Callable[..., Result]) -> None:
    assert json.loads(nightshift("migrate", "--json").stdout)["migration"] == SCHEMA
    found = world.ask("SELECT detail FROM audit_log WHERE action = 'migrate'")
    assert [row.detail["migration"][0] for row in found] == [None]


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert audit_log.user() == "uid 4000000"
