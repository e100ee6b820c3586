"""Mending by clicks: who may, what a form rests on, what is refused where that has changed, what is written down."""

import html
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.connection import Actor
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import failed_rows
from nightshift.common.states import RowErrorKind
from nightshift.producer.cli.app import app as command_line
from nightshift.producer.control import job_moves, job_settings
from nightshift.producer.serve.console import failures
from tests.support import batch_site
from tests.support.batch_site import line
from tests.support.console_site import Site, send
from tests.support.fleet import wait_until
from tests.support.staged import an_hour_later, machine, reaper
from tests.support.staged import job as model_job
from tests.support.world import World

PRICED = {"backend": "vllm", "model": "m", "price_per_hour": 2.0}
GENERATE = {"kind": "generate", "prompt": "{{ text }}"}
BAD, LONG = RowErrorKind.BAD_RECORD, RowErrorKind.TRUNCATED


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


@pytest.fixture
def job(site: Site, world: World) -> int:
    """A job of acme with a price, which may use two pools and priorities up to 5."""
    world.do("UPDATE tenants SET max_priority = 5, pools = '{default,big}' WHERE name = 'acme'")
    return world.job(4, 4, name="one", tenant="acme", task=GENERATE, engine=PRICED)


def state(world: World, job: int) -> str:
    return str(world.ask("SELECT state FROM jobs WHERE id = %s", job)[0].state)


def log(world: World, job: int) -> list[tuple[str, str, dict[str, Any]]]:
    found = world.run(audit_log.of_job, job)
    return [(row["who"], row["action"], row["detail"]) for row in found]


def form_of(browser: TestClient, path: str, place: str, words: str = "") -> dict[str, object]:
    """The fields of a form of a page, as a browser sends them: the first for the place with the words in it. Fields
    that name the form from elsewhere belong to it.
    """
    page = browser.get(path).text
    for found in re.findall(r"<form[^>]*>.*?</form>", page, re.DOTALL):
        if f'action="{place}"' in found and words in found:
            fields = re.findall(r"<input[^>]*>", found)
            if (name := re.search(r'<form[^>]* id="([^"]*)"', found)) is not None:
                fields += re.findall(rf'<input[^>]*form="{name[1]}"[^>]*>', page)
            return dict(map(_field, fields))
    raise AssertionError(f"{path} has no form for {place} with {words!r}")


def _field(written: str) -> tuple[str, str]:
    name, value = (re.search(rf' {each}="([^"]*)"', written) for each in ("name", "value"))
    return name[1] if name else "", html.unescape(value[1]) if value else ""


def settings(browser: TestClient, job: int, **typed: object) -> dict[str, object]:
    """The form that changes a job, with what somebody has typed; its state stands in the part that is live."""
    page = browser.get(f"/jobs/{job}").text
    shown = re.search(r'form="change" name="was-state" value="([a-z]*)"', page)
    assert shown is not None
    form = form_of(browser, f"/jobs/{job}", f"/jobs/{job}/set", "Finish by")
    return {**form, "was-state": shown[1], **typed}


def test_fields_change_on_the_page_and_the_log_has_old_and_new_values(
    site: Site, world: World, job: int
) -> None:
    user, place = site.browser("user"), f"/jobs/{job}/set"
    typed = {
        "pool": "big",
        "priority": "5",
        "weight": "2.5",
        "max_parallel": "7",
        "budget": "12.5",
        "finish_by": "2099-12-24T06:00+00:00",
    }
    done = send(user, place, settings(user, job, **typed))
    assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job}")
    found = world.run(jobs.get, job)
    assert (found.spec.pool, found.spec.priority, found.spec.weight) == ("big", 5, 2.5)
    assert (found.spec.limits.max_parallel, found.spec.limits.budget) == (7, 12.5)
    [(who, action, detail)] = log(world, job)
    assert (who, action) == ("key 2 user (acme)", "set")
    deadline = detail.pop("finish_by")
    assert deadline[0] is None
    assert deadline[1].startswith("2099-12-24 06:00")
    assert detail == {
        "pool": ["default", "big"],
        "priority": [0, 5],
        "weight": [1, 2.5],
        "max_parallel": [None, 7],
        "budget": [None, 12.5],
    }
    none = {"max_parallel": "", "budget": "", "finish_by": ""}
    assert send(user, place, settings(user, job, **none)).status_code == 303
    assert log(world, job)[1][2].keys() == none.keys()
    assert send(user, place, settings(user, job)).status_code == 303
    assert len(log(world, job)) == 2, "what nobody has changed is no change"


ACTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "pause": ("move", {"do": "pause", "was-state": "running"}),
    "cancel": ("move", {"do": "cancel", "was-state": "running"}),
    "set": ("set", {"priority": "3", "was-priority": "0", "was-state": "running"}),
    "retry": ("retry", {"kind": "", "was-state": "running"}),
    "load": ("load", {"was-state": "running"}),
}


@pytest.mark.parametrize("name", list(ACTIONS))
def test_who_may_do_what_and_from_which_page(site: Site, world: World, job: int, name: str) -> None:
    place, form = f"/jobs/{job}/{ACTIONS[name][0]}", ACTIONS[name][1]
    failing(world, job, {0: BAD}, ["no"])
    world.do("UPDATE engines SET load_failures = 2")
    world.do(
        "INSERT INTO engines (pool, engine_key, load_failures) SELECT pool, engine_key, 2 FROM jobs "
        "ON CONFLICT DO NOTHING"
    )
    assert send(site.browser("viewer"), place, form).status_code == 403
    assert send(site.browser("other"), place, form).status_code == 404
    assert send(site.browser("user"), place, form, "http://evil.example").status_code == 403
    assert site.browser("user").post(place, data=form).status_code == 403, "it names no page"
    assert log(world, job) == []
    assert send(site.browser("user"), place, form).status_code == 303
    assert [(who, action) for who, action, _ in log(world, job)] == [
        ("key 2 user (acme)", "load again" if name == "load" else name)
    ]
    assert send(site.browser("user"), place, form).status_code == 303, "a second click"
    assert len(log(world, job)) == 1, "is no second change"


def test_a_change_that_meets_another_state_does_not_happen_and_says_who_was_faster(
    site: Site, world: World, job: int
) -> None:
    user, boss = site.browser("user"), site.browser("ops")
    shown = form_of(user, f"/jobs/{job}", f"/jobs/{job}/move", "pause")
    page = settings(user, job, priority="3")
    assert send(boss, f"/jobs/{job}/move", {**shown, "do": "pause"}).status_code == 303
    assert send(user, f"/jobs/{job}/move", {**shown, "do": "pause"}).status_code == 303
    late = send(user, f"/jobs/{job}/move", {**shown, "do": "cancel"})
    assert (late.status_code, state(world, job)) == (409, "paused")
    assert "job 1 (one) is paused by now, by an operator at" in late.text.lower()
    assert "nothing was changed" in late.text
    assert 'name="do" value="resume"' in late.text, "it is the page of now"
    refused = send(user, f"/jobs/{job}/set", page)
    assert (refused.status_code, len(log(world, job))) == (409, 1)
    told = send(boss, f"/jobs/{job}/move", {**shown, "do": "cancel"})
    assert "by key 4 ops (ops) at" in told.text
    assert send(user, f"/jobs/{job}/set", settings(user, job, priority="3")).status_code == 303


def test_a_field_that_somebody_else_has_changed_is_not_overwritten(
    site: Site, world: World, job: int
) -> None:
    user = site.browser("user")
    shown = settings(user, job, priority="3", weight="4")
    found = world.run(jobs.get, job)
    ann = world.ledger.acting(Actor("ann (acme)", "here"))
    job_settings.change(ann, found, {"priority": "2"})
    late = send(user, f"/jobs/{job}/set", shown)
    assert late.status_code == 409
    assert "has priority 2 by now, by ann (acme) at" in late.text
    assert world.run(jobs.get, job).spec.weight == 1
    assert len(log(world, job)) == 1
    only = {**shown, "priority": "0"}
    assert send(user, f"/jobs/{job}/set", only).status_code == 303, "the others may change"
    assert world.run(jobs.get, job).spec.priority == 2


def test_a_change_between_the_page_and_the_lock_is_seen(
    site: Site, world: World, job: int, second_ledger: Callable[[], Ledger]
) -> None:
    """The change of somebody else holds the job's row while the click arrives, and commits first."""
    user, answers = site.browser("user"), []
    form = settings(user, job, priority="3")
    with second_ledger().transaction() as connection:
        jobs.pause(connection, job)
        click = threading.Thread(
            target=lambda: answers.append(send(user, f"/jobs/{job}/set", form).status_code)
        )
        click.start()
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: bool(world.ask(waits)), what="the click at the lock of the job")
    click.join(60)
    assert answers == [409]
    assert world.run(jobs.get, job).spec.priority == 0
    assert log(world, job) == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"priority": "6"}, "above 5"),
        ({"pool": "gpus"}, "not one of this tenant"),
        ({"finish_by": "yesterday"}, "is no time"),
        ({"weight": "0"}, "weight"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_and_stays_typed(
    site: Site, world: World, job: int, typed: dict[str, object], says: str
) -> None:
    user = site.browser("user")
    refused = send(user, f"/jobs/{job}/set", settings(user, job, **typed))
    assert refused.status_code == 400
    assert says in html.unescape(refused.text)
    assert '<details class="card mend" open>' in refused.text
    ((name, value),) = typed.items()
    assert re.search(rf'name="{name}"[^>]*value="{value}"', refused.text)
    assert log(world, job) == []


def test_a_tenant_is_held_to_what_changes_and_an_operator_to_nothing(
    site: Site, world: World, job: int
) -> None:
    boss, user = site.browser("ops"), site.browser("user")
    beyond = settings(boss, job, priority="900", pool="gpus")
    assert send(boss, f"/jobs/{job}/set", beyond).status_code == 303
    inside = settings(user, job, weight="3")
    assert send(user, f"/jobs/{job}/set", inside).status_code == 303, "its priority stays"
    token = {"authorization": f"Bearer {site.keys['user']}"}
    client = TestClient(site.app, base_url="http://console", headers=token)
    assert client.patch(f"/api/jobs/{job}", json={"weight": 4}).status_code == 200
    refused = client.patch(f"/api/jobs/{job}", json={"priority": 901})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_allowed")


def test_a_budget_needs_a_price_on_the_page_too(site: Site, world: World) -> None:
    free = world.job(1, name="free", tenant="acme")
    user = site.browser("user")
    assert 'name="budget"' not in user.get(f"/jobs/{free}").text
    form: dict[str, object] = {"budget": "5", "was-budget": "none", "was-state": "running"}
    refused = send(user, f"/jobs/{free}/set", form)
    assert (refused.status_code, "needs a price" in refused.text) == (400, True)


def test_a_job_that_has_spent_its_budget_resumes_with_another(
    site: Site, world: World, job: int
) -> None:
    user, place = site.browser("user"), f"/jobs/{job}/move"
    job_settings.change(site.app.state.context.ledger, world.run(jobs.get, job), {"budget": "1"})
    world.run(jobs.pause, job, "1.20 is spent, which reaches limits.budget 1.00")
    form = form_of(user, f"/jobs/{job}", place, "Resume with this budget")
    assert (form["do"], form["was-budget"]) == ("resume", "1")
    assert send(user, place, {**form, "budget": "no"}).status_code == 400
    assert send(user, place, {**form, "budget": "20"}).status_code == 303
    assert send(user, place, {**form, "budget": "20"}).status_code == 303
    assert log(world, job)[1:] == [
        ("key 2 user (acme)", "resume", {"state": ["paused", "running"], "budget": [1, 20]})
    ]
    late = send(user, place, {**form, "budget": "30"})
    assert (late.status_code, "is running by now" in late.text) == (409, True)


def test_a_job_without_workers_moves_to_a_pool_that_has_some_and_is_allowed(
    site: Site, world: World
) -> None:
    reaper(world)
    world.do("UPDATE tenants SET pools = '{a100,default,edge}' WHERE name = 'acme'")
    waits = model_job(world, "waits", 4, "a100")
    for pool in ("default", "gpus", "edge"):
        machine(world, f"host-{pool}", waits, pool)
    world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', 'host-edge', false)")
    user, boss = site.browser("user"), site.browser("ops")
    offered = re.compile(r"Move to pool ([a-z0-9]+)")
    assert offered.findall(user.get(f"/jobs/{waits}").text) == ["default"]
    assert offered.findall(boss.get(f"/jobs/{waits}").text) == ["default", "gpus"]
    assert offered.findall(site.browser("viewer").get(f"/jobs/{waits}").text) == []
    form = form_of(user, f"/jobs/{waits}", f"/jobs/{waits}/set", "Move to pool default")
    assert send(user, f"/jobs/{waits}/set", form).status_code == 303
    assert send(user, f"/jobs/{waits}/set", form).status_code == 303
    assert log(world, waits) == [("key 2 user (acme)", "set", {"pool": ["a100", "default"]})]


def failing(world: World, job: int, kinds: dict[int, RowErrorKind], messages: list[str]) -> None:
    """The rows of the next batch fail so, with these messages in turn."""
    world.commit(world.lease(job), kinds)
    for place, row in enumerate(sorted(kinds)):
        world.do(
            "UPDATE row_errors SET message = %s WHERE job_id = %s AND row_index = %s",
            *(messages[place % len(messages)], job, row),
        )


def again(world: World, job: int) -> list[int]:
    """Failed rows that run again."""
    found = world.ask(
        "SELECT e.row_index FROM row_errors e JOIN batches b ON b.id = e.batch_id "
        "WHERE e.job_id = %s AND b.redo @> e.row_index ORDER BY 1",
        job,
    )
    return [row.row_index for row in found]


def test_one_group_of_errors_runs_again_and_the_others_stay(
    site: Site, world: World, job: int
) -> None:
    failing(world, job, dict.fromkeys(range(4), LONG), ["row 1 is cut at 99", "no key 7"])
    failing(world, job, {4: LONG, 5: BAD, 6: LONG}, ["row 22 is cut at 5"])
    user, place = site.browser("user"), f"/jobs/{job}/retry"
    page = user.get(f"/jobs/{job}/failed").text
    said = re.findall(r'<div class="says">([^\n]*)\n', page)
    assert said == ["row # is cut at #", "no key #", "row # is cut at #"], "by kind and message"
    form = form_of(user, f"/jobs/{job}/failed", place, "group")
    assert send(user, place, {**form, "was-state": "paused"}).status_code == 409
    assert again(world, job) == []
    assert send(user, place, form).status_code == 303
    assert again(world, job) == [0, 2, 4, 6]
    assert send(user, place, form).status_code == 303
    assert [detail["rows"] for _, action, detail in log(world, job) if action == "retry"] == [4]
    assert re.findall(r"rows\?row=(\d)", user.get(f"/jobs/{job}/failed?group={form['group']}").text)
    assert user.get(f"/jobs/{job}/failed?group=%27").status_code == 200


def test_a_group_of_dead_batches_is_found_by_the_error_of_the_batch(
    site: Site, world: World, job: int
) -> None:
    for number in (1, 2):
        world.fail(world.lease(job), permanent=True)
        world.do(
            "UPDATE batches SET last_error = %s WHERE state = 'dead' AND last_error = 'no'",
            f"GPU {number} is gone" if number == 1 else "another cause",
        )
    user, place = site.browser("user"), f"/jobs/{job}/retry"
    form = form_of(user, f"/jobs/{job}/failed", place, "group")
    assert send(user, place, form).status_code == 303
    assert sorted(world.states(job)) == ["dead", "pending"]


def test_long_messages_that_begin_alike_are_one_group_for_the_page_and_for_its_retry(
    site: Site, world: World, job: int
) -> None:
    long = [f"row {number} is cut " * 60 for number in (7, 12345)]
    failing(world, job, dict.fromkeys(range(3), LONG), [f"{long[0]} here", f"{long[1]} there"])
    user, place = site.browser("user"), f"/jobs/{job}/retry"
    page = user.get(f"/jobs/{job}/failed").text
    assert page.count("row # is cut") > 20
    assert page.count('<div class="says">') == 1
    assert (
        send(user, place, form_of(user, f"/jobs/{job}/failed", place, "group")).status_code == 303
    )
    assert again(world, job) == [0, 1, 2]


def test_a_group_behind_other_rows_runs_again_as_it_was_seen(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the group come in the second piece of the retry."""
    job = world.job(2, 2, 2, tenant="acme")
    failing(world, job, {0: BAD}, ["no key"])
    failing(world, job, {2: BAD}, ["no end"])
    monkeypatch.setattr("nightshift.producer.retry.ROWS_A_PIECE", 1)
    user, place = site.browser("user"), f"/jobs/{job}/retry"
    form = form_of(user, f"/jobs/{job}", place, world.run(failed_rows.group_of, "no end"))
    world.run(jobs.pause, job)
    late = send(user, place, form)
    assert (late.status_code, "is paused by now" in late.text) == (409, True)
    assert "retry" not in [action for _, action, _ in log(world, job)]


def test_a_tenant_that_moves_a_job_is_told_of_no_machine(
    site: Site, world: World, job: int
) -> None:
    reaper(world)
    machine(world, "gpu-7", job)
    world.do("UPDATE slots SET serves = 'another'")
    said = TestClient(site.app).patch(
        f"/api/jobs/{job}",
        json={"pool": "big"},
        headers={"authorization": f"Bearer {site.keys['user']}"},
    )
    assert said.json()["message"] == f"job {job} (one): pool default -> big"


def test_the_command_line_chooses_by_message_as_the_page_does(
    world: World, job: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    failing(world, job, dict.fromkeys(range(4), LONG), ["row 1 is cut at 99", "no key 7"])
    asked = ["retry", "one", "--failed", "--message", "no key 123"]
    assert "2 rows in 1 batch run again" in CliRunner().invoke(command_line, asked).stdout
    assert again(world, job) == [1, 3]
    assert CliRunner().invoke(command_line, ["retry", "one", "--dead", "--message", "x"]).exit_code


def test_groups_of_very_many_rows_are_estimated_and_the_page_says_so(
    site: Site, world: World, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "EXAMINED", 1)
    big = world.job(400, name="big", tenant="acme")
    failing(world, big, dict.fromkeys(range(400), LONG), ["row 1 is cut"])
    found = world.run(lambda connection: failures.of(connection, big, most=3))
    assert (found.kinds, found.every) == ({"truncated": 400}, 400)
    monkeypatch.setattr(failures, "EXAMINED", 100)
    found = world.run(lambda connection: failures.of(connection, big, most=3))
    (group,) = found.groups
    assert found.every == 4
    assert group["rows"] % 4 == 0
    assert 200 <= group["rows"] <= 600
    assert "one of every 4 rows" in site.browser("user").get(f"/jobs/{big}/failed").text


def test_of_many_jobs_those_that_have_changed_are_left_and_named(site: Site, world: World) -> None:
    several = [world.job(1, name=f"n{number}", tenant="acme") for number in range(3)]
    user = site.browser("user")
    form = form_of(user, "/", "/jobs")
    assert form[f"was-state-{several[0]}"] == "running"
    job_moves.pause(site.app.state.context.ledger, world.run(jobs.get, several[1]))
    picked = {**form, "do": "cancel", "job": [str(each) for each in several]}
    answer = send(user, "/jobs", picked)
    assert answer.status_code == 409
    assert f"ob {several[1]} (n1) is paused by now" in answer.text
    assert [state(world, each) for each in several] == ["cancelled", "paused", "cancelled"]
    assert "<h1>Jobs</h1>" in answer.text


def test_a_machine_that_somebody_else_has_moved_is_left(site: Site, world: World) -> None:
    machine(world, "gpu-1", world.job(1, name="one", tenant="acme"))
    boss = site.browser("ops")
    shown = form_of(boss, "/fleet", "/fleet", "Cordon")
    assert shown == {"name": "gpu-1", "was-state": "in service"}
    for who in ("viewer", "user"):
        assert send(site.browser(who), "/fleet", {**shown, "do": "cordon"}).status_code == 403
    assert send(boss, "/fleet", {**shown, "do": "cordon"}).status_code == 303
    assert send(boss, "/fleet", {**shown, "do": "cordon"}).status_code == 303
    late = send(boss, "/fleet", {**shown, "do": "drain"})
    assert (late.status_code, "pu-1 is cordoned by now, by key 4 ops (ops)" in late.text) == (
        409,
        True,
    )
    assert [row.drains for row in world.ask("SELECT drains FROM cordons")] == [False]
    given_back = form_of(boss, "/fleet", "/fleet", "uncordon")
    assert send(boss, "/fleet", {**given_back, "do": "uncordon"}).status_code == 303
    rows = world.ask("SELECT action FROM audit_log WHERE subject = 'host gpu-1' ORDER BY id")
    assert [row.action for row in rows] == ["cordon", "uncordon"]


def test_as_many_rows_that_failed_otherwise_are_grouped_anew(
    world: World, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, now = failures.Kinds(), [1000.0]
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now[0]))
    failing(world, job, {0: BAD}, ["no key"])

    def said() -> list[str]:
        with world.ledger.transaction() as connection:
            found = counted.of(connection, {"job": job, "rows_failed": 1})
        return [each["message"] for each in found.groups]

    assert said() == ["no key"]
    world.do("UPDATE row_errors SET message = 'no end'")
    assert said() == ["no key"], "counted a moment ago"
    now[0] += 100.0
    assert said() == ["no end"]


def test_jobs_behind_one_cordon_have_a_button_each_and_no_name_stands_twice(
    site: Site, world: World
) -> None:
    reaper(world)
    found = [model_job(world, name, 4) for name in ("one", "two")]
    machine(world, "gpu-1", found[0])
    world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', 'gpu-1', false)")
    an_hour_later(world)
    page = site.browser("ops").get("/").text
    assert page.count("Uncordon gpu-1") == 2
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))


def test_a_batch_of_the_api_is_cancelled_as_it_was_seen(ledger: Ledger, tmp_path: Any) -> None:
    batches = batch_site.Site(ledger, tmp_path)
    site, batch = Site(ledger, batches.settings), batches.batch(line())
    user, place = site.browser("user"), f"/batches/{batch.id}"
    form = {**form_of(user, place, place), "do": "cancel"}
    assert form["was-state"] == "validating"
    batches.sql("UPDATE api_batches SET state = 'failed'")
    late = send(user, place, form)
    assert (late.status_code, "is failed by now" in late.text) == (409, True)
    batches.sql("UPDATE api_batches SET state = 'validating'")
    assert send(user, place, form).status_code == 303
    assert send(user, place, form).status_code == 303
    with ledger.transaction() as connection:
        (row,) = audit_log.of_subject(connection, f"batch {batch.id}")
    assert row["detail"] == {"state": ["validating", "cancelled"]}


def test_what_an_operator_changes_for_a_tenant_is_a_change_of_the_operator(
    ledger: Ledger, tmp_path: Any
) -> None:
    batches = batch_site.Site(ledger, tmp_path)
    site, batch = Site(ledger, batches.settings), batches.batch(line())
    ops, place = site.browser("ops"), f"/batches/{batch.id}"
    assert send(ops, place, {**form_of(ops, place, place), "do": "cancel"}).status_code == 303
    assert send(ops, f"/files/{batch.input_file_id}/delete", {}).status_code == 303
    with ledger.transaction() as connection:
        for subject in (f"batch {batch.id}", f"file {batch.input_file_id}"):
            assert audit_log.of_subject(connection, subject)[-1]["who"].endswith(" ops (ops)")
            seen = audit_log.of_subject(connection, subject, batch.tenant)[-1]
            assert (seen["who"], seen["host"]) == (audit_log.SOMEBODY, "")
