"""Where jobs stand, as a reaper tells it: what is written when, who reads it, and in which order jobs are listed."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from nightshift.common.ledger import audit_log, holds
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace, standings
from nightshift.common.ledger.queries.standings import Filter, Key
from nightshift.common.states import ShownState
from nightshift.producer.advice.here import FLEET, NOBODY, Here
from nightshift.producer.cli.app import app
from nightshift.producer.explain import tell
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.explain.tell import Teller
from nightshift.producer.views.standings import with_standings
from tests.support.world import World

Beat = Callable[..., None]


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
def teller(world: World, beat: Beat) -> Iterator[Teller]:
    """What a living reaper tells in its turns."""
    beat()
    found = Teller(world.ledger, "r-1")
    yield found
    found.leave()


def looked(
    world: World, *ids: int, here: Here = FLEET, tenant: str | None = None
) -> list[dict[Any, Any]]:
    with world.ledger.transaction() as connection:
        return with_standings(connection, job_pace.some(connection, ids), here, tenant)


def look(world: World, job_id: int, **how: Any) -> tuple[str, str, bool]:
    """Word, kind and need of a job, for whoever looks now."""
    found = looked(world, job_id, **how)[0]["standing"]
    return (str(found.word), found.kind, found.needs_person)


def stored(world: World) -> dict[int, Any]:
    rows = world.ask("SELECT *, xmin::text AS version FROM job_standings ORDER BY job_id")
    return {row.job_id: row for row in rows}


def test_a_turn_tells_of_open_jobs_and_of_those_that_failed_lately(
    world: World, teller: Teller
) -> None:
    waits, paused, failed, old, done = (world.job(1, name=f"j{n}") for n in range(5))
    world.run(jobs.pause, paused)
    over = "UPDATE jobs SET state = %s, finished_at = now() - make_interval(days => %s), closed_at = now()"
    for id, state, days in ((failed, "failed", 6), (old, "failed", 8), (done, "completed", 0)):
        world.do(f"{over} WHERE id = %s", state, days, id)
    teller.turn()
    found = {id: (row.word, row.kind, row.needs_person) for id, row in stored(world).items()}
    assert found == {
        waits: ("waits", "no_worker", False),
        paused: ("paused", "paused", False),
        failed: ("failed", "failed", True),
    }
    assert [look(world, id)[0] for id in (waits, paused, failed, old, done)] == [
        "waits",
        "paused",
        "failed",
        "failed",
        "done",
    ]
    waiting = dict(world.ask("SELECT job, sentence FROM waiting_jobs"))
    assert waiting == {waits: "no worker of the pool default is alive"}
    world.do("UPDATE jobs SET finished_at = now() - interval '8 days'")
    world.do("UPDATE jobs SET state = 'cancelled', closed_at = now() WHERE id = %s", waits)
    teller.turn()
    assert list(stored(world)) == [paused], "the others need nobody any more"


def test_a_row_is_written_again_only_when_something_of_it_has_changed(
    world: World, teller: Teller
) -> None:
    first, second = world.job(4, name="one"), world.job(4, name="two")
    teller.turn()
    before = stored(world)
    teller.turn()
    assert stored(world) == before
    world.run(jobs.pause, second)
    teller.turn()
    after = stored(world)
    assert after[first] == before[first]
    assert (after[second].word, after[second].since > before[second].since) == ("paused", True)


def test_a_wait_that_lasts_needs_a_person_and_keeps_its_beginning(
    world: World, teller: Teller
) -> None:
    job = world.job(1)
    teller.turn()
    since = "UPDATE job_standings SET since = since - interval '31 s' RETURNING since"
    [(began,)] = world.ask(since)
    teller.turn()
    row = stored(world)[job]
    assert (row.kind, row.needs_person, row.since) == ("no_worker", True, began)
    assert look(world, job) == ("waits", "no_worker", True)


def test_what_was_told_of_another_state_of_the_job_is_not_shown(
    world: World, teller: Teller
) -> None:
    job = world.job(1)
    teller.turn()
    with audit_log.acting("carol (ops)", "host-9"), world.ledger.transaction() as connection:
        jobs.pause(connection, job)
        audit_log.record(connection, "pause", job)
    [row] = looked(world, job)
    assert (row["standing"].word, row["waiting"]) == ("paused", None)
    assert "by carol (ops) on host-9" in row["standing"].sentence
    world.run(jobs.resume, job)
    assert look(world, job)[0] == "waits"


@pytest.mark.parametrize("was_told", [True, False])
def test_without_a_reaper_or_a_run_every_open_job_says_so(
    world: World, beat: Beat, teller: Teller, was_told: bool
) -> None:
    job, paused = world.job(1, name="one"), world.job(1, name="two")
    world.run(jobs.pause, paused)
    if was_told:
        teller.turn()
    beat(seconds=31)
    assert look(world, job) == ("waits", "no_reaper", True)
    assert look(world, job, here=NOBODY) == ("waits", "no_run", True)
    assert look(world, paused) == look(world, paused, here=NOBODY) == ("paused", "paused", False)
    with world.ledger.transaction() as connection:
        assert standings.needing(connection, None, unled=True) == 1
        [first, second] = standings.for_persons_first(connection, Filter(unled=True), limit=5)
    assert (first, second) == (Key(True, job), Key(False, paused))


def test_a_reaper_that_has_not_noted_that_it_lives_tells_nothing(world: World, beat: Beat) -> None:
    job = world.job(1)
    teller = Teller(world.ledger, "r-1")
    assert teller.turn() is False
    assert stored(world) == {}
    beat()
    teller.turn()
    assert list(stored(world)) == [job]


def test_one_reaper_tells_for_all_until_it_leaves_or_is_gone(world: World, teller: Teller) -> None:
    other = Teller(world.ledger, "r-2")
    teller.turn()
    job = world.job(1)
    other.turn()
    assert stored(world) == {}
    assert look(world, job)[1] == "no_worker", "who looks needs no row"
    teller.leave()
    other.turn()
    assert list(stored(world)) == [job]
    world.do("UPDATE holds SET until = now() - interval '1 s'")
    assert not world.ask("SELECT FROM waiting_jobs"), "no reaper keeps the standings up to date"
    teller.turn()
    assert world.ask("SELECT holder FROM holds WHERE kind = 'standings'")[0].holder == "r-1"


def test_of_many_jobs_those_that_changed_come_first_and_the_others_in_turn(
    world: World, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, "MOST_JOBS", 3)
    made = [world.job(1, name=f"j{n}") for n in range(7)]
    while teller.turn():
        pass
    teller.turn()
    assert list(stored(world)) == made
    world.do("UPDATE job_standings SET sentence = 'of before'")
    world.run(jobs.pause, made[6])

    def renewed() -> list[int]:
        return [id for id, row in stored(world).items() if row.sentence != "of before"]

    teller.turn()
    assert made[6] in renewed()
    for _ in range(3):
        teller.turn()
    assert renewed() == made


def test_guests_read_no_machine_no_job_of_others_and_no_person(
    world: World, teller: Teller
) -> None:
    mine = world.job(1, name="mine", tenant="acme")
    secret = world.job(1, name="secret", tenant="bee", priority=9)
    paused = world.job(1, name="held", tenant="acme")
    slot = """
        INSERT INTO slots (supervisor, slot, host, pool, gpus, state, engine_key, refused)
        SELECT 's-1', 0, 'gpu-1', 'default', '0', 'ready', engine_key, '{}' FROM jobs LIMIT 1
    """
    world.do(slot)
    with audit_log.acting("carol (ops)", "host-9"), world.ledger.transaction() as connection:
        jobs.pause(connection, paused)
        audit_log.record(connection, "pause", paused)
    teller.turn()
    told = world.ask("SELECT sentence, guest_sentence FROM job_standings ORDER BY job_id")
    assert "(secret) goes first" in told[0].sentence
    assert "carol (ops) on host-9" in told[2].sentence
    for how in ("told", "looked at now"):
        if how == "looked at now":
            teller.leave()
        rows = looked(world, mine, paused, tenant="acme")
        said = " ".join(str(row["standing"].as_json) + str(row["waiting"]) for row in rows)
        assert "a job of another tenant goes first" in said
        assert "by an operator" in said
        for name in ("secret", f"job {secret}", "gpu-1", "carol", "host-9"):
            assert name not in said


def test_pages_by_key_lose_and_double_no_job(world: World, teller: Teller) -> None:
    made = [world.job(1, name=f"j{n}", tenant="acme" if n % 2 else "bee") for n in range(120)]
    teller.turn()
    needing = made[::3]
    world.do("UPDATE job_standings SET needs_person = true WHERE job_id = ANY (%s)", needing)

    def pages(wanted: Filter, limit: int) -> list[int]:
        found: list[Key] = []
        after = standings.START
        while True:
            with world.ledger.transaction() as connection:
                page = standings.for_persons_first(connection, wanted, limit=limit, after=after)
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
        assert pages(Filter(word=ShownState.WAITS), limit) == needing[::-1] + others[::-1]
        assert pages(Filter(word=ShownState.AT_WORK), limit) == []
    with world.ledger.transaction() as connection:
        assert standings.needing(connection, None, unled=False) == 40
        assert standings.needing(connection, "acme", unled=False) == 20
        assert standings.newest(connection, Filter(needs_person=True), limit=5) == needing[::-1][:5]
        assert standings.newest(connection, Filter(word=ShownState.PAUSED), limit=5) == []


def test_a_turn_of_a_reaper_that_lost_its_hold_begins_anew(world: World, teller: Teller) -> None:
    teller.turn()
    with world.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM holds"))
    job = world.job(1)
    teller.turn()
    assert list(stored(world)) == [job]
    assert holds.SECONDS[holds.Kind.STANDINGS] <= standings.REAPER_SILENT_SECONDS


def test_a_job_of_which_nothing_can_be_told_holds_up_no_other(
    world: World, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, odd, *others = (world.job(1, name=f"j{n}") for n in range(5))
    world.do("UPDATE jobs SET finish_by = '10000-01-02' WHERE id = %s", first)
    of_facts = tell.standing

    def standing(known: Facts, *given: Any) -> Any:
        if known.job_id == odd:
            raise ValueError("the job is odd")
        return of_facts(known, *given)

    monkeypatch.setattr(tell, "standing", standing)
    teller.turn()
    assert list(stored(world)) == [first, *others]
    monkeypatch.setattr(tell, "MOST_UNTOLD", 0)
    with pytest.raises(ValueError, match="the job is odd"):
        teller.turn()


def test_commands_choose_jobs_by_where_they_stand(
    world: World, teller: Teller, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    waits, spent = world.job(1, name="one"), world.job(1, name="two")
    world.run(jobs.pause, spent, "limits.budget 5 is spent")
    teller.turn()

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
