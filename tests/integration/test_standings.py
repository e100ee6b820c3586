"""Standings of jobs: computed when they are read, for all jobs of a page at once, and how jobs are listed by them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from typer.testing import CliRunner

from nightshift.common.ledger import audit_log
from nightshift.common.ledger.connection import Actor
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.fleet.outages import Kind, Teller, Wait
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace, standings
from nightshift.common.ledger.queries.standings import Filter, Key
from nightshift.common.states import JobState, ShownState
from nightshift.producer.advice.here import FLEET, NOBODY, Here
from nightshift.producer.cli.app import app
from nightshift.producer.views.standings import Board, board, with_standings
from tests.support import staged
from tests.support.world import World

Beat = Callable[..., None]

SPENT = "limits.budget 5 is spent"


@pytest.fixture
def beat(world: World) -> Beat:
    """A reaper notes that it lives, or did so many seconds ago."""

    def note(seconds: float = 0.0, name: str = "r-1") -> None:
        world.do(
            "INSERT INTO reapers (name, host, code_version, seen_at) "
            "VALUES (%s, 'h', 'x', now() - make_interval(secs => %s)) "
            "ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at",
            name,
            seconds,
        )

    return note


@pytest.fixture
def reaper(world: World) -> None:
    """A reaper that lives."""
    staged.reaper(world)


def looked(
    world: World, *ids: int, here: Here = FLEET, tenant: str | None = None
) -> list[dict[Any, Any]]:
    with world.ledger.transaction() as connection:
        return with_standings(connection, job_pace.some(connection, ids), here, tenant)


def look(world: World, job_id: int, **how: Any) -> tuple[str, str, bool]:
    """Word, kind and need of a job."""
    found = looked(world, job_id, **how)[0]["standing"]
    return (str(found.word), found.kind, found.needs_person)


def read_board(world: World, owner: str | None = None, here: Here = FLEET) -> Board:
    with world.ledger.transaction() as connection:
        return board(connection, owner, here, owner)


def earlier(world: World, table: str, column: str, seconds: int) -> None:
    """Move a moment in all rows of a table into the past."""
    world.do(
        f"UPDATE {table} SET {column} = {column} - make_interval(secs => %s)",
        seconds,
    )


@pytest.mark.usefixtures("reaper")
def test_open_jobs_and_those_that_failed_lately_may_need_a_person(world: World) -> None:
    waits, paused, spent, failed, old, done = (world.job(1, name=f"j{n}") for n in range(6))
    world.run(jobs.pause, paused)
    world.run(jobs.pause, spent, SPENT)
    over = "UPDATE jobs SET state = %s, finished_at = now() - make_interval(days => %s), closed_at = now()"
    for id, state, days in ((failed, "failed", 6), (old, "failed", 8), (done, "completed", 0)):
        world.do(f"{over} WHERE id = %s", state, days, id)
    assert {id: look(world, id) for id in (waits, paused, spent, failed, old, done)} == {
        waits: ("waits", "no_worker", False),
        paused: ("paused", "paused", False),
        spent: ("paused", "paused", True),
        failed: ("failed", "failed", True),
        old: ("failed", "failed", False),
        done: ("done", "completed", False),
    }
    assert read_board(world).needing == {spent, failed}
    earlier(world, "jobs", "finished_at", 8 * 86_400)
    world.do("UPDATE jobs SET state = 'cancelled', closed_at = now() WHERE id = %s", spent)
    assert not read_board(world).needing


@pytest.mark.usefixtures("reaper")
def test_a_wait_that_lasts_needs_a_person_and_keeps_its_beginning(world: World) -> None:
    job = world.job(1)
    assert look(world, job) == ("waits", "no_worker", False)
    earlier(world, "jobs", "state_since", 31)
    (began,) = world.ask("SELECT state_since FROM jobs")[0]
    [row] = looked(world, job)
    assert (row["standing"].since, row["standing"].needs_person) == (began, True)
    assert looked(world, job)[0]["standing"] == row["standing"]
    # A worker of the pool has left a moment ago: the wait began then.
    world.do(
        "INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, state, ended_at) "
        "VALUES ('w', 's', 'default', 0, 'h', 1, 'x', 'ended', now())"
    )
    assert look(world, job) == ("waits", "no_worker", False)
    earlier(world, "workers", "ended_at", 31)
    assert look(world, job) == ("waits", "no_worker", True)


@pytest.mark.usefixtures("reaper")
def test_a_wait_begins_when_the_last_lease_ended(world: World) -> None:
    job = world.job(1, 1)
    earlier(world, "jobs", "state_since", 3600)
    world.admit(job)
    [lease] = world.claim(job, owner="gpu-1/0", most=1)
    world.commit(lease)
    [row] = looked(world, job)
    ended = world.ask("SELECT ended_at FROM attempts")[0].ended_at
    assert (row["standing"].kind, row["standing"].since) == ("no_worker", ended)
    assert not row["standing"].needs_person
    earlier(world, "attempts", "ended_at", 31)
    assert look(world, job) == ("waits", "no_worker", True)


@pytest.mark.usefixtures("reaper")
def test_a_wait_does_not_begin_before_the_rows_were_added(world: World) -> None:
    """A watched job was done for an hour."""
    job = world.job(1, 1)
    world.commit(world.lease(job))
    world.do(
        "INSERT INTO generations (job_id, number, source, first_file, stop_file, first_row, stop_row, first_seq, stop_seq) "
        "VALUES (%s, 1, 'submit', 0, 1, 0, 1, 0, 1), (%s, 2, 'input', 1, 2, 1, 2, 1, 2)",
        *(job, job),
    )
    for table, column in (
        ("jobs", "state_since"),
        ("attempts", "ended_at"),
        ("generations", "planned_at"),
    ):
        earlier(world, table, column, 3600)
    assert look(world, job) == ("waits", "no_worker", True)
    world.do("UPDATE generations SET planned_at = now() WHERE number = 2")
    assert look(world, job) == ("waits", "no_worker", False)
    planned = world.ask("SELECT planned_at FROM generations WHERE number = 2")[0].planned_at
    [row] = looked(world, job)
    assert row["standing"].since == planned


@pytest.mark.usefixtures("reaper")
def test_a_cordon_needs_a_person_once_it_has_lasted(world: World) -> None:
    job = staged.job(world, "one", 4)
    staged.machine(world, "gpu-1", job)
    earlier(world, "jobs", "state_since", 3600)
    world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', 'gpu-1', false)")
    assert look(world, job) == ("waits", "cordoned", False)
    earlier(world, "cordons", "since", 31)
    [row] = looked(world, job)
    (since,) = world.ask("SELECT since FROM cordons")[0]
    assert (row["standing"].since, row["standing"].needs_person) == (since, True)


@pytest.mark.usefixtures("reaper")
def test_the_wait_for_a_store_began_with_the_outage(world: World) -> None:
    job = staged.job(world, "one", 4)
    staged.machine(world, "gpu-1", job, slots=1)
    earlier(world, "jobs", "state_since", 3600)
    world.admit(job)
    assert world.claim(job, owner="gpu-1/0", most=1, seconds=86_400)
    teller = Teller("gpu-1/0", "gpu-1", "default", world.specs[job].engine_key)
    for seconds, needs in ((299.0, False), (301.0, True)):
        world.run(outages.tell, teller, [Wait(Kind.STORAGE, job, seconds, "the disk is full")])
        [row] = looked(world, job)
        (since,) = world.ask("SELECT since FROM outages")[0]
        assert (row["standing"].kind, row["standing"].since) == ("storage_away", since)
        assert row["standing"].needs_person is needs


@pytest.mark.usefixtures("reaper")
def test_a_change_of_state_shows_at_once_with_its_moment(world: World) -> None:
    job = world.job(1)
    earlier(world, "jobs", "state_since", 3600)
    with world.ledger.acting(Actor("carol (ops)", "host-9")).transaction() as connection:
        jobs.pause(connection, job)
        audit_log.record(connection, "pause", job)
    [row] = looked(world, job)
    assert (row["standing"].word, row["waiting"]) == ("paused", None)
    assert "by carol (ops) on host-9" in row["standing"].sentence
    (since, fresh) = world.ask(
        "SELECT state_since, state_since > now() - interval '1 min' FROM jobs"
    )[0]
    assert (row["standing"].since, fresh) == (since, True)
    world.run(jobs.resume, job)
    assert look(world, job)[0] == "waits"
    world.do("UPDATE jobs SET reason = 'none', state = state")
    assert world.ask("SELECT state_since FROM jobs WHERE state_since > %s", since), "of the resume"


def test_without_a_reaper_or_a_run_every_open_job_says_so(world: World, beat: Beat) -> None:
    job, paused = world.job(1, name="one"), world.job(1, name="two")
    world.run(jobs.pause, paused)
    assert look(world, job) == ("waits", "no_reaper", True)
    beat(seconds=31)
    assert look(world, job) == ("waits", "no_reaper", True)
    assert look(world, job, here=NOBODY) == ("waits", "no_run", True)
    assert look(world, paused) == look(world, paused, here=NOBODY) == ("paused", "paused", False)
    found = read_board(world)
    assert found.needing == {job}
    with world.ledger.transaction() as connection:
        [first, second] = found.page(connection, Filter(), limit=5)
    assert (first, second) == (Key(True, job), Key(False, paused))
    beat()
    assert look(world, job) == ("waits", "no_worker", False)


@pytest.mark.usefixtures("reaper")
def test_guests_read_no_machine_no_job_of_others_and_no_person(world: World) -> None:
    mine = world.job(1, name="mine", tenant="acme")
    secret = world.job(1, name="secret", tenant="bee", priority=9)
    paused = world.job(1, name="held", tenant="acme")
    slot = """
        INSERT INTO slots (supervisor, slot, host, pool, gpus, state, engine_key, refused)
        SELECT 's-1', 0, 'gpu-1', 'default', '0', 'ready', engine_key, '{}' FROM jobs LIMIT 1
    """
    world.do(slot)
    with world.ledger.acting(Actor("carol (ops)", "host-9")).transaction() as connection:
        jobs.pause(connection, paused)
        audit_log.record(connection, "pause", paused)
    first, held = (row["standing"].sentence for row in reversed(looked(world, mine, paused)))
    assert "(secret) goes first" in first
    assert "carol (ops) on host-9" in held
    rows = looked(world, mine, paused, tenant="acme")
    said = " ".join(str(row["standing"].as_json) + str(row["waiting"]) for row in rows)
    assert "a job of another tenant goes first" in said
    assert "by an operator" in said
    for name in ("secret", f"job {secret}", "gpu-1", "carol", "host-9"):
        assert name not in said


@pytest.mark.usefixtures("reaper")
def test_pages_by_key_lose_and_double_no_job(world: World) -> None:
    made = [world.job(1, name=f"j{n}", tenant="acme" if n % 2 else "bee") for n in range(120)]
    needing = made[::3]
    for id in needing:
        world.run(jobs.pause, id, SPENT)
    boards = {owner: read_board(world, owner) for owner in (None, "acme")}

    def pages(wanted: Filter, limit: int) -> list[int]:
        found: list[Key] = []
        after = standings.START
        while True:
            with world.ledger.transaction() as connection:
                known = boards[wanted.tenant]
                page = known.page(connection, wanted, limit=limit, after=after)
            found += page
            if len(page) < limit:
                return [key.job_id for key in found]
            after = page[-1]

    others = [id for id in made if id not in needing]
    for limit in (7, 40, 50):
        assert pages(Filter(), limit) == needing[::-1] + others[::-1]
        own = set(made[1::2])
        assert pages(Filter("acme"), limit) == [
            id for id in needing[::-1] + others[::-1] if id in own
        ]
        assert pages(Filter(needs_person=True), limit) == needing[::-1]
        assert pages(Filter(word=ShownState.WAITS), limit) == others[::-1]
        assert pages(Filter(word=ShownState.AT_WORK), limit) == []
        assert pages(Filter(word=ShownState.PAUSED), limit) == needing[::-1]
        assert pages(Filter(state=JobState.RUNNING, name="J11"), limit) == [
            id for id in others[::-1] if made.index(id) in (11, *range(110, 120))
        ]
    assert (len(boards[None].needing), len(boards["acme"].needing)) == (40, 20)
    with world.ledger.transaction() as connection:
        newest = boards[None].newest
        assert newest(connection, Filter(needs_person=True), limit=5) == needing[::-1][:5]
        assert newest(connection, Filter(word=ShownState.WAITS), limit=5) == others[::-1][:5]
        both = Filter(word=ShownState.WAITS, needs_person=True)
        assert newest(connection, both, limit=5) == []


@pytest.mark.usefixtures("reaper")
def test_the_number_of_queries_does_not_grow_with_that_of_the_jobs(world: World) -> None:
    def queries() -> int:
        counted: list[str] = []

        def count(*given: Any) -> None:
            counted.append(given[2])

        event.listen(world.ledger.engine, "before_cursor_execute", count)
        read_board(world)
        event.remove(world.ledger.engine, "before_cursor_execute", count)
        return len(counted)

    def some(number: int) -> None:
        for n in range(number):
            busy, paused, _ = (world.job(2, name=f"{number}-{n}-{k}") for k in range(3))
            world.run(jobs.pause, paused)
            world.do("UPDATE jobs SET finish_by = now() + interval '1 h' WHERE id = %s", busy)

    some(1)
    before = queries()
    some(9)
    assert queries() == before > 0


@pytest.mark.usefixtures("reaper")
def test_commands_choose_jobs_by_their_standing(
    world: World, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    waits, spent = world.job(1, name="one"), world.job(1, name="two")
    world.run(jobs.pause, spent, SPENT)

    def listed(*flags: str) -> dict[int, str]:
        said = CliRunner().invoke(app, ["status", "--json", *flags])
        assert said.exit_code == 0, said.output
        return {row["job"]: row["standing"]["word"] for row in json.loads(said.stdout)}

    assert listed() == {spent: "paused", waits: "waits"}
    assert listed("--state", "waits") == {waits: "waits"}
    assert listed("--state", "at work") == {}
    assert listed("--needs-person") == {spent: "paused"}
    shown = CliRunner().invoke(app, ["status"]).stdout
    assert "(two): it is paused: limits.budget 5 is spent" in shown
    assert "(one): no worker of the pool default is alive" in shown
    for wrong in (["--state", "bored"], ["one", "--state", "waits"]):
        refused = CliRunner().invoke(app, ["status", *wrong])
        assert refused.exit_code != 0
