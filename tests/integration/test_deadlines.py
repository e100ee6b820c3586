"""Deadlines on a real Postgres and by the command line: rates, plans, admission, what status says."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nightshift.common.allocation.deadlines import Standing
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.fleet import slots as fleet
from nightshift.common.ledger.fleet.slots import Machine, SlotReport
from nightshift.common.ledger.jobs import deadlines, jobs
from nightshift.producer.explain.facts import facts
from nightshift.producer.explain.reasons import explain
from nightshift.producer.reaper import admission
from nightshift.producer.views import rates
from nightshift.producer.views.deadlines import Deadline, with_deadlines
from nightshift.worker.supervisor import planning
from tests.support.fleet import Fleet, commit_one, function_spec, logs, wait_until, write_rows
from tests.support.world import World, child_of, make_ready, part_of

Ask = Callable[[str], list[tuple[Any, ...]]]


def due(world: World, job_id: int, seconds: float | None) -> None:
    moment = None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
    world.run(deadlines.set_finish_by, job_id, moment)


def measured(world: World, job_id: int, seconds: float) -> None:
    """Commits a batch that took so many seconds of a slot."""
    lease = world.lease(job_id)
    part = replace(part_of(lease), engine_microseconds=round(seconds * 1e6))
    with world.ledger.transaction() as connection:
        commit_one(connection, lease, part)


def seen(world: World, job_id: int) -> Deadline:
    with world.ledger.transaction() as connection:
        row = jobs.progress(connection, job_id)
        found: Deadline = with_deadlines(connection, [row])[0]["deadline"]
    return found


def planned(world: World, count: int) -> Counter[str | None]:
    """How many of so many free slots the plan gives to each engine key."""
    machine = Machine("m", "default", "host")
    slots = [SlotReport(number, "", None, None, leaves=False) for number in range(count)]

    def report() -> Counter[str | None]:
        with world.ledger.transaction() as connection:
            orders, _ = fleet.report(
                connection, machine, slots, idle_seconds=0, seen_every_seconds=0
            )
        return Counter(order.planned_key for order in orders)

    report()
    made = "UPDATE pool_plans SET computed_at = now() - make_interval(secs => %s) RETURNING 1"
    world.ask(made, 60)
    assert planning.renew(world.ledger, "default", 30)
    world.ask(made, -60)
    return report()


def key_of(world: World, job_id: int) -> str:
    return world.specs[job_id].engine_key


def other(world: World, *sizes: int, **facts: Any) -> int:
    return world.job(*sizes, name="other", callable="rules:other", **facts)


def test_a_late_job_gets_its_slots_in_the_plan_and_from_an_autoscaler(world: World) -> None:
    late, rest = world.job(300, *[100] * 100), other(world, *[256] * 99)
    assert planned(world, 4) == {key_of(world, late): 2, key_of(world, rest): 2}
    measured(world, late, seconds=30)
    due(world, late, 400)
    # 10,000 rows at 10 rows a second and slot are 1,000 s; 0.9 of 400 s need 2.8 slots.
    assert planned(world, 4) == {key_of(world, late): 3, key_of(world, rest): 1}
    due(world, late, 20)
    assert planned(world, 4) == {key_of(world, late): 4}
    desired = "SELECT desired_workers AS n FROM pool_demand WHERE engine_key = %s"
    assert world.ask(desired, key_of(world, late))[0].n == 56
    due(world, late, None)
    assert planned(world, 4) == {key_of(world, late): 3, key_of(world, rest): 1}
    assert world.ask(desired, key_of(world, late))[0].n == 40


def test_without_a_fresh_rate_a_deadline_changes_nothing_and_says_so(world: World) -> None:
    late, rest = world.job(300, *[100] * 100), other(world, *[256] * 99)
    due(world, late, 20)
    fair = {key_of(world, late): 2, key_of(world, rest): 2}
    assert planned(world, 4) == fair
    assert seen(world, late).text == "no measured rate yet: the deadline has no effect"
    measured(world, late, seconds=30)
    moved = "UPDATE attempts SET ended_at = ended_at - make_interval(hours => %s) RETURNING 1"
    world.ask(moved, 25)
    assert planned(world, 4) == fair
    assert seen(world, late).text == (
        "the rate was measured more than a day ago: the deadline has no effect"
    )
    world.ask(moved, -2)
    assert planned(world, 4) == {key_of(world, late): 4}
    world.run(jobs.pause, late)
    assert seen(world, late).text == "paused: the deadline has no effect"


def test_a_rate_is_that_of_a_slot_at_work_and_counts_what_is_held(world: World) -> None:
    job_id = world.job(300, *[100] * 100)
    due(world, job_id, 3600)
    make_ready(world, child_of(world.specs[job_id]))
    measured(world, job_id, seconds=30)
    with world.ledger.transaction() as connection:
        assert deadlines.works(connection)[job_id].slots == 0
    lease = world.lease(job_id, owner="child-1")
    with world.ledger.transaction() as connection:
        (found,) = deadlines.works(connection, pool="default").values()
        assert deadlines.works(connection, pool="elsewhere") == {}
        assert deadlines.works(connection, job_ids=[job_id + 1]) == {}
    assert (found.rows, found.rate, found.slots, found.most_slots) == (10_000, 10.0, 1.0, 100)
    assert found.seconds_left == pytest.approx(3600, abs=60)
    world.commit(lease)


def test_few_rows_are_no_rate(world: World) -> None:
    """The first rows of a window are slower than those that follow."""
    job_id = world.job(1, *[100] * 100)
    due(world, job_id, 3600)
    measured(world, job_id, seconds=10)
    assert seen(world, job_id).outlook is not None
    assert seen(world, job_id).as_json["standing"] == Standing.NO_RATE
    measured(world, job_id, seconds=10)
    measured(world, job_id, seconds=10)
    assert seen(world, job_id).as_json["standing"] == Standing.LATE


def test_batches_of_one_row_have_a_rate(world: World) -> None:
    """The commits that are looked at never have as many rows as a window."""
    job_id = world.job(300, *[1] * deadlines.COMMITS_LOOKED_AT, 50_000)
    due(world, job_id, 3600)
    for _ in range(deadlines.COMMITS_LOOKED_AT + 1):
        measured(world, job_id, seconds=0.1)
    with world.ledger.transaction() as connection:
        assert deadlines.works(connection)[job_id].rate == pytest.approx(10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3600, "on time"),
        (600, "late by 7 min, on time with 1 more worker"),
        (120, "late by 15 min, on time with 8 more workers"),
        (5, "late by 17 min"),
        (-3600, "late by 1 h 17 min"),
    ],
)
def test_status_says_what_is_expected(world: World, seconds: float, text: str) -> None:
    """10,000 rows at 10 rows a second and slot, with one slot."""
    job_id = world.job(300, *[100] * 100)
    make_ready(world, child_of(world.specs[job_id]))
    measured(world, job_id, seconds=30)
    world.do("UPDATE attempts SET claimed_at = ended_at - interval '30 s'")
    world.lease(job_id, owner="child-1")
    due(world, job_id, seconds)
    found = seen(world, job_id)
    assert found.text == text
    assert found.brief == text.partition(",")[0]


def test_batches_of_a_late_job_are_admitted_before_others_of_its_engine(world: World) -> None:
    first, late = world.job(*[10] * 50), world.job(*[10] * 50, name="late")
    make_ready(world, child_of(world.specs[late]))
    measured(world, late, seconds=60)
    due(world, late, 30)
    with world.ledger.transaction() as connection:
        admission.admit(connection, 60)
        rows = {job: jobs.progress(connection, job) for job in (first, late)}
    assert rows[late]["batches_queued"] > 0
    assert rows[first]["batches_queued"] == 0


def test_explain_names_the_deadline_of_the_job_that_has_the_slots(world: World) -> None:
    late, waiting = world.job(100, 100), other(world, 100)
    due(world, late, 7_200)
    has_it = SlotReport(0, "", None, key_of(world, late), leaves=False)
    world.run(dispatch.beat, "reaper", "host", "1")
    with world.ledger.transaction() as connection:
        machine = Machine("m", "default", "host")
        fleet.report(connection, machine, [has_it], idle_seconds=0, seen_every_seconds=0)
    world.ask("UPDATE slots SET state = 'ready', ready_at = now() RETURNING 1")
    with world.ledger.transaction() as connection:
        job = jobs.find(connection, str(waiting))
        (reason,) = explain(facts(connection, job))
    assert reason.kind == "slots_taken"
    assert f"job {late} (shout, priority 0, with a deadline in " in reason.sentence


def test_how_a_job_that_is_over_stood_to_its_deadline(world: World) -> None:
    job_id = world.job(1)
    due(world, job_id, 3600)
    world.commit(world.lease(job_id))
    world.finish(job_id)
    assert seen(world, job_id).text == "on time"
    earlier = "UPDATE jobs SET finish_by = finished_at - interval '70 min' RETURNING 1"
    world.ask(earlier)
    assert seen(world, job_id).text == "late by 1 h 10 min"
    with world.ledger.transaction() as connection:
        (row,) = with_deadlines(connection, [jobs.progress(connection, job_id)])
    assert rates.as_json(row)["deadline"]["late_seconds"] == 4200


def put(fleet: Fleet, name: str, rows: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """Submits a job with a model of its own."""
    source = fleet.folder / f"in-{name}"
    write_rows(source, [("a.parquet", rows)])
    engine = {"backend": "function", "callable": "rules:Model", "args": {"name": name}}
    spec = function_spec(name, source, fleet.folder / name, engine=engine, batch={"rows": 20})
    return fleet.command("submit", str(fleet.spec(spec)), *flags)


def test_a_submit_keeps_the_moment_and_refuses_what_is_none(fleet: Fleet, ask: Ask) -> None:
    put(fleet, "plain", 10)
    refused = put(fleet, "past", 10, "--finish-by", "2026-01-01")
    assert refused.returncode == 2
    assert "limits.finish_by: 2026-01-01 has passed: it was" in refused.stderr
    refused = put(fleet, "soon", 10, "--finish-by", "soon")
    assert refused.returncode == 2
    assert "limits.finish_by: 'soon' is no time: give a time such as 06:00" in refused.stderr
    assert put(fleet, "due", 10, "--finish-by", "8h").returncode == 0
    assert ask("SELECT name FROM jobs ORDER BY id") == [("plain",), ("due",)]
    again = fleet.command("submit", "due.yaml", "--finish-by", "8h")
    assert again.returncode == 0
    assert "finish_by" not in again.stdout + again.stderr
    again = fleet.command("submit", "due.yaml", "--finish-by", "9h")
    assert "`nightshift set 2 --finish-by 9h` changes it" in again.stdout + again.stderr
    ((seconds,),) = ask("SELECT extract(epoch FROM finish_by - created_at) FROM jobs WHERE id = 2")
    assert float(seconds) == pytest.approx(8 * 3600, abs=60)
    # Workers of a release before deadlines read this spec.
    assert ask("SELECT spec -> 'limits' ? 'finish_by' FROM jobs WHERE id = 2") == [(False,)]
    assert fleet.status("plain")["deadline"] is None
    found = fleet.status("due")["deadline"]
    assert datetime.fromisoformat(found["finish_by"]) > datetime.now(UTC) + timedelta(hours=7)
    assert (found["standing"], found["late_seconds"], found["more_workers"]) == (
        "no rate",
        None,
        None,
    )
    assert "no measured rate yet: the deadline has no effect" in fleet.command("status", "2").stdout
    assert "no rate" in fleet.command("jobs").stdout


def test_set_changes_the_deadline_of_a_job(fleet: Fleet, ask: Ask) -> None:
    put(fleet, "plain", 10)
    later = fleet.command("set", "plain", "--finish-by", "2099-01-01T06:00Z", "--priority", "3")
    assert later.returncode == 0, later.stderr
    assert "finish_by none -> 20" in later.stdout
    assert ask("SELECT extract(year FROM finish_by)::int, priority FROM jobs") == [(2099, 3)]
    same = fleet.command("set", "plain", "--finish-by", "2099-01-01T06:00Z")
    assert "nothing changed" in same.stdout
    passed = fleet.command("set", "plain", "--finish-by", "2026-01-01")
    assert passed.returncode == 2
    assert "--finish-by: 2026-01-01 has passed" in passed.stderr
    none = json.loads(fleet.command("set", "plain", "--finish-by", "none", "--json").stdout)
    assert none["changed"]["finish_by"]["new"] is None
    assert ask("SELECT finish_by FROM jobs") == [(None,)]
    assert ask("SELECT count(*) FROM audit_log WHERE action = 'set'") == [(2,)]


MODEL = """
import time

class Model:
    def __init__(self, name):
        self.name = name

    def __call__(self, rows):
        while self.name == "rest":  # as long as the test
            time.sleep(0.02)
        time.sleep(0.02 * len(rows))
        return [{"loud": row["text"].upper()} for row in rows]
"""

PLANNED = """
    SELECT j.name, count(*) FROM slot_plans p JOIN jobs j USING (engine_key)
    GROUP BY j.name ORDER BY j.name
"""


@pytest.mark.slow
def test_of_two_jobs_on_two_slots_the_late_one_has_both(fleet: Fleet, ask: Ask) -> None:
    """A minute of one slot, due in half a minute, beside a job without a deadline."""
    (fleet.folder / "rules.py").write_text(MODEL)
    assert put(fleet, "rest", 3000).returncode == 0
    fleet.reaper()
    fleet.worker("--slots", "2")
    wait_until(lambda: ask(PLANNED) == [("rest", 2)], what="a plan without the late job")
    assert put(fleet, "late", 3000, "--finish-by", "35s").returncode == 0
    wait_until(lambda: ask(PLANNED) == [("late", 2)], what="both slots for the late job")
    text = fleet.status("late")["deadline"]["text"]
    assert text.startswith(("late", "on time"))
    waited = fleet.command("wait", "late")
    assert waited.returncode == 0, waited.stdout + waited.stderr + logs(fleet.folder)
    wait_until(lambda: ask(PLANNED) == [("rest", 2)], what="the slots of the other job again")
    assert ask("SELECT count(*) FROM batches WHERE failures + losses > 0") == [(0,)]
