"""The first hour of a new user: one test for each line, by the command line and real processes."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.common.ledger.fleet import outages, workers
from nightshift.common.ledger.fleet.outages import Kind, Teller, Wait
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET, Here, Works
from nightshift.producer.views import fleet_views, progress, rates, tables
from nightshift.producer.views.last_sign import with_load_log
from tests.support.fleet import Fleet, logs, output_ids, write_rows
from tests.support.world import World, become_ready, child_of, make_ready


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Fleet]:
    """A folder with nothing but a dataset, code, and the command."""
    found = Fleet(tmp_path)
    write_rows(tmp_path / "in", [("a.jsonl", 250)])
    yield found
    found.end()


PACE = ("rows_per_second", "output_tokens_per_second", "eta_seconds")

RUN = ("run", "in/a.jsonl", "--callable", "rules:loud", "--id", "id", "--out", "out")


@pytest.mark.slow
def test_a_job_that_failed_by_its_code_and_is_mended_goes_on_by_the_same_command(
    alone: Fleet,
) -> None:
    code = alone.folder / "rules.py"
    # What fails only once the function's instance is made: an import that fails is answered before a server starts.
    code.write_text(
        "class loud:\n    def __init__(self):\n        import nothing_there\n    def __call__(self, rows): ...\n"
    )
    failed = alone.command(*RUN)
    assert failed.returncode == 3, failed.stderr + logs(alone.folder)
    assert "nightshift run SPEC    continues the job after the cause is fixed" in failed.stdout

    code.write_text("def loud(rows):\n    raise ValueError('not yet')\n")
    raised = alone.command(*RUN)
    assert raised.returncode in (1, 3), raised.stderr + logs(alone.folder)
    assert "job 1 had failed: it continues where it stopped" in raised.stdout

    code.write_text("def loud(rows):\n    return [{'loud': row['text'].upper()} for row in rows]\n")
    mended = alone.command(*RUN)
    assert mended.returncode == 0, mended.stderr + logs(alone.folder)
    assert "its 250 failed rows run again" in mended.stdout
    assert len(output_ids(alone.folder / "out")) == 250


def test_the_same_run_of_a_completed_job_says_that_nothing_ran_and_which_code_changed(
    alone: Fleet,
) -> None:
    """Of the function's own files, imported ones too, those that are not as they were loaded."""
    (alone.folder / "rules.py").write_text(
        "import words\ndef loud(rows):\n    return [{'loud': words.louder(row['text'])} for row in rows]\n"
    )
    words = alone.folder / "words.py"
    words.write_text("louder = str.upper\n")
    first = alone.command(*RUN)
    assert first.returncode == 0, first.stderr + logs(alone.folder)
    assert "rows/s over" in first.stdout
    lines = first.stdout.splitlines()
    assert lines[:3] == [
        "starting PostgreSQL and Redis in .nightshift",
        "job 1: 250 rows in 1 batch",
        "starting a reaper and a worker, whose logs are in .nightshift",
    ]
    assert "waits" not in first.stdout
    assert len(set(lines)) == len(lines)  # each line says something new
    assert "nightshift collect 1 --to a-answers.parquet    all rows as one file" in first.stdout
    assert "nothing ran" not in first.stdout

    again = alone.command(*RUN)
    assert again.returncode == 0
    assert re.search(r"job 1 was completed on \d{4}-\d\d-\d\d \d\d:\d\d; nothing ran", again.stdout)
    assert "rows/s over" not in again.stdout
    assert "changed" not in again.stdout

    words.write_text("louder = str.lower\n")
    for command in (RUN, ("submit", *RUN[1:])):
        edited = alone.command(*command)
        assert edited.returncode == 0, edited.stderr
        said = edited.stdout + edited.stderr
        assert "the function's code changed since its rows ran: words.py" in said
        assert "rules.py" not in said


@pytest.mark.slow
def test_a_run_of_a_completed_job_whose_output_is_gone_fails_and_names_the_way_back(
    alone: Fleet,
) -> None:
    (alone.folder / "rules.py").write_text(
        "def loud(rows):\n    return [{'loud': 1} for _ in rows]\n"
    )
    assert alone.command(*RUN).returncode == 0, logs(alone.folder)
    shutil.rmtree(alone.folder / "out")
    for command in (RUN, ("submit", *RUN[1:]), ("wait", "1")):
        gone = alone.command(*command)
        said = gone.stdout + gone.stderr
        assert (gone.returncode, "`nightshift retry 1 --lost --yes`" in said) == (3, True), said
    assert "1 part of job 1 is gone from" in said
    assert alone.command("retry", "1", "--lost", "--yes").returncode == 0
    back = alone.command(*RUN)
    assert back.returncode == 0, back.stdout + back.stderr
    assert len(output_ids(alone.folder / "out")) == 250


def test_a_changed_spec_says_what_changed_and_names_a_free_directory(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.jsonl", 3)])
    submit = ("submit", "in/a.jsonl", "--id", "id", "--out", "out", "--callable")
    assert fleet.command(*submit, "rules:shout").returncode == 0
    refused = fleet.command(*submit, "rules:slow")
    assert refused.returncode == 2
    assert "differs in engine.callable" in refused.stderr
    assert "`--out out-2`" in refused.stderr


def test_resubmitting_with_another_priority_says_that_it_does_not_change(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.jsonl", 3)])
    submit = ("submit", "in/a.jsonl", "--callable", "rules:shout", "--out", "out")
    assert fleet.command(*submit).stderr == ""
    again = fleet.command(*submit, "--priority", "7", "--max-parallel", "2")
    assert again.returncode == 0
    assert "`nightshift set 1 --priority 7` changes it" in again.stderr
    assert "`nightshift set 1 --max-parallel 2` changes it" in again.stderr


def test_a_name_that_fits_several_live_jobs_is_refused_with_their_ids(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.jsonl", 3)])
    submit = ("submit", "in/a.jsonl", "--callable", "rules:shout", "--name", "twin", "--out")
    assert [fleet.command(*submit, out).returncode for out in ("one", "two")] == [0, 0]
    refused = fleet.command("cancel", "twin")
    assert refused.returncode == 2
    assert "are called 'twin': name one by its number, 2, 1" in refused.stderr
    assert fleet.command("cancel", "1").returncode == 0
    assert "job 2 (twin): state running -> paused" in fleet.command("pause", "twin").stdout


def test_an_output_that_cannot_be_created_is_named_as_the_culprit(fleet: Fleet) -> None:
    """Of a CSV file, whose copy is written first."""
    (fleet.folder / "tickets.csv").write_text("id,text\n1,a\n")
    submit = ("submit", "tickets.csv", "--callable", "rules:shout", "--out")
    for place in ("/proc/none/out", "tickets.csv/out", f"{'x' * 300}/out"):
        refused = fleet.command(*submit, place)
        assert refused.returncode == 2
        assert "cannot be " in refused.stderr
        assert f"{place} cannot be " in refused.stderr
        assert "vanished" not in refused.stderr
    assert fleet.command("jobs").stdout.strip() == "no jobs yet"


def test_an_output_directory_that_is_not_empty_is_said(fleet: Fleet) -> None:
    write_rows(fleet.folder / "in", [("a.jsonl", 3)])
    (fleet.folder / "out").mkdir()
    (fleet.folder / "out" / "notes.txt").write_text("x")
    done = fleet.command("submit", "in/a.jsonl", "--callable", "rules:shout", "--out", "out")
    assert done.returncode == 0
    assert "not empty: the parts will lie beside notes.txt" in done.stderr


def test_missing_input_and_used_folders_are_found_before_servers_start(alone: Fleet) -> None:
    alone.is_furnished = False
    missing = alone.command(*RUN[:1], "in/none.jsonl", *RUN[2:])
    assert missing.returncode == 2
    assert "in/none.jsonl: there is no such file" in missing.stderr
    (alone.folder / "out").mkdir()
    (alone.folder / "out" / "_owner.json").write_text('{"ledger": "x", "identity": "y"}')
    used = alone.command(*RUN)
    assert used.returncode == 2
    assert "belongs to a job in another ledger" in used.stderr
    assert not (alone.folder / ".nightshift").exists()


def test_a_job_that_was_paused_by_its_failed_rows_is_known_as_such(world: World) -> None:
    job = world.job(250, 250)
    world.admit(job)
    world.commit(world.lease(job), errors=range(250))
    with world.ledger.transaction() as connection:
        assert jobs.judge_failures(connection, job)
        assert jobs.progress(connection, job)["status"] == JobState.PAUSED
        assert jobs.failed_too_often(connection, job)
        jobs.resume(connection, job)
        jobs.pause(connection, job)
        assert not jobs.failed_too_often(connection, job)


def worked(world: World, job: int, done: list[tuple[float, float]], first: int = 0) -> None:
    """Lets batches of a job be done from the `first` on: claimed and committed so many seconds ago."""
    for seq, (claimed, ended) in enumerate(done, first):
        world.ask(
            """
            WITH taken AS (
                UPDATE batches SET state = 'done', attempt = 1, owner = 'w', part_name = 'p',
                       part_bytes = 1, part_checksum = 'c'
                WHERE job_id = %s AND seq = %s RETURNING id, job_id, row_count
            ), noted AS (
                UPDATE jobs SET started_at = least(started_at, now() - make_interval(secs => %s))
                WHERE id = (SELECT job_id FROM taken))
            INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version,
                woken, claimed_at, ended_at, outcome, row_count, rows_failed, output_tokens)
            SELECT id, 1, job_id, 'w', 'function', '1', 'poll',
                   now() - make_interval(secs => %s), now() - make_interval(secs => %s),
                   'done', row_count, 0, 0 FROM taken RETURNING 1
            """,
            job,
            seq,
            claimed,
            claimed,
            ended,
        )


def test_the_eta_of_a_job_without_a_worker_is_null(world: World) -> None:
    job = world.job(*[10] * 8)
    worked(world, job, [(4, 3), (3, 2), (2, 1), (1, 0)])
    alone = world.run(job_pace.of, job)
    assert float(alone["rows_per_second"]) == pytest.approx(10, rel=0.2)
    assert alone["eta_seconds"] is None
    make_ready(world, child_of(world.specs[job]))
    seen = world.run(job_pace.of, job)
    assert float(seen["eta_seconds"]) == pytest.approx(4, rel=0.2)
    assert (seen["workers"], seen["loading_seconds"]) == (1, None)
    assert 0 <= float(seen["seconds_since_sign"]) < 60


def test_a_job_whose_every_worker_or_whose_end_waits_has_no_rate_of_before(world: World) -> None:
    """It stood beside the sentence of the outage in every list."""
    job = world.job(*[10] * 8)
    worked(world, job, [(4, 3), (3, 2), (2, 1), (1, 0)])
    spec = world.specs[job]
    for number in (1, 2):
        make_ready(world, child_of(spec, number))

    def told(who: str, *waits: Wait) -> None:
        own = (None, None) if who == "reaper" else (spec.pool, spec.engine_key)
        world.run(outages.tell, Teller(who, "host", *own), waits)

    def rates() -> set[bool]:
        looks = [world.run(job_pace.of, job), *world.run(job_pace.listed)]
        return {look[figure] is not None for look in looks for figure in PACE}

    storage = Wait(Kind.STORAGE, job, 9, "No space left")
    assert rates() == {True}
    told("a", storage)
    told("reaper", storage)
    assert rates() == {True}, "one worker of two is at work"
    told("b", Wait(Kind.SERVER, None, 9, "refused"))
    assert rates() == {False}
    told("a")
    assert rates() == {True}
    told("b")

    worked(world, job, [(4, 3), (3, 2), (2, 1), (1, 0)], first=4)
    assert world.run(job_pace.of, job)["rows_per_second"] is None, "its end alone is left"


def test_the_screens_of_watch_and_top_show_no_rate_while_postgres_is_away(world: World) -> None:
    job = world.job(*[10] * 8)
    worked(world, job, [(4, 3), (3, 2), (2, 1), (1, 0)])
    make_ready(world, child_of(world.specs[job]))
    listed, fleet = progress.all_jobs(world.ledger), fleet_views.fleet(world.ledger)
    for now, before in (
        (listed.rows, listed.of_before().rows),
        (fleet.jobs, fleet.of_before().jobs),
    ):
        assert now[0]["rows_per_second"] is not None
        assert now[0]["eta_seconds"] is not None
        assert before[0]["rows_per_second"] is before[0]["eta_seconds"] is None
        assert {**before[0], **{name: now[0][name] for name in PACE}} == now[0]
    assert set(fleet.of_before().rates.values()) == set()


def test_a_rate_is_over_the_time_at_work_and_not_over_a_pause(world: World) -> None:
    """Five batches, a pause of twenty minutes, five batches: 10 rows a second in each half."""
    job = world.job(*[10] * 20)
    late = [(1205.0 - place, 1204.0 - place) for place in range(5)]
    worked(world, job, [*late, *((5.0 - place, 4.0 - place) for place in range(5))])
    make_ready(world, child_of(world.specs[job]))
    seen = world.run(job_pace.of, job)
    assert float(seen["rows_per_second"]) == pytest.approx(10, rel=0.2)
    assert float(seen["eta_seconds"]) == pytest.approx(10, rel=0.2)

    world.run(job_end.note_work, job)
    world.ask(
        "UPDATE jobs SET state = 'failed', closed_at = now(), finished_at = now() RETURNING 1"
    )
    over = world.run(job_pace.of, job)
    assert rates.elapsed_seconds(over) == pytest.approx(10, rel=0.1)
    assert rates.overall_rate(over) == pytest.approx(10, rel=0.1)


def test_the_first_rate_after_a_pause_is_that_of_before_and_not_one_over_the_pause(
    world: World,
) -> None:
    """Five batches, an hour's third of a pause, and the first batch after it is under way."""
    job = world.job(*[10] * 20)
    worked(world, job, [(1205.0 - place, 1204.0 - place) for place in range(5)])
    child = child_of(world.specs[job])
    make_ready(world, child)

    def seen() -> tuple[float, float, float]:
        # In one transaction, so that now() is the same in both.
        with world.ledger.transaction() as connection:
            row, raw = job_pace.of(connection, job), jobs.progress(connection, job)
        assert raw["rows_per_second"] == row["rows_per_second"]
        return float(row["rows_per_second"]), float(row["eta_seconds"]), float(raw["eta_seconds"])

    assert seen() == pytest.approx((10, 15, 15), rel=0.2), "nothing is leased yet"
    lease = world.lease(job, owner=child.id)
    assert seen() == pytest.approx((10, 15, 15), rel=0.2), "leased a moment ago"
    world.ask(
        "UPDATE attempts SET claimed_at = now() - interval '45 seconds' WHERE outcome IS NULL RETURNING 1"
    )
    # A lease that is open for long counts: 40 rows in four seconds and forty-five.
    assert seen() == pytest.approx((40 / 49, 150 / 40 * 49, 150 / 40 * 49), rel=0.2)
    world.commit(lease)
    assert seen()[0] == pytest.approx(10 / 45, rel=0.2), "what the job does now"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_job_says_which_model_is_loaded_for_it(world: World, resumed: bool) -> None:
    job = world.job(10, 10)
    if resumed:
        world.commit(world.lease(job))
    child = child_of(world.specs[job])
    world.run(workers.register, child)
    world.ask("UPDATE workers SET started_at = now() - interval '80 seconds' RETURNING 1")
    row = world.run(job_pace.of, job)
    assert "loading rules:shout (1:20)," in f"{tables.line(row)},"
    for here, says in (
        (FLEET, "the standard error of nightshift-worker on host shows its steps"),
        (Here(Works.RUN), "`nightshift logs` shows its steps"),
    ):
        with world.ledger.transaction() as connection:
            told = with_load_log(connection, row, here)
        assert f"loading rules:shout (1:20), {says}" in tables.line(told)
        assert says not in tables.line({**told, "loading_seconds": 59.0}), (
            "a load of seconds needs no log"
        )
    become_ready(world, child)
    assert "loading" not in tables.line(world.run(job_pace.of, job))


def test_jobs_and_status_show_priority_pool_and_the_age_of_the_last_sign(
    fleet: Fleet, world: World
) -> None:
    job = world.job(10, 10, priority=-7, pool="night")
    worked(world, job, [(200, 190)])
    for command in (("jobs",), ("status",), ("status", str(job))):
        shown = fleet.command(*command).stdout
        assert all(word in shown for word in ("night", "-7", "3 min")), shown
    said = fleet.status(job)
    assert (said["pool"], said["priority"], said["eta_seconds"]) == ("night", -7, None)
    assert said["seconds_since_sign"] > 180


@pytest.mark.slow
def test_a_function_that_returns_too_little_is_said_while_its_batches_are_halved(
    alone: Fleet,
) -> None:
    code = "def loud(rows):\n    return [{'loud': rows[0]['text'].upper()}]\n"
    (alone.folder / "rules.py").write_text(code)
    done = alone.command(*RUN, "--limit", "40")
    assert done.returncode == 0, done.stderr + logs(alone.folder)
    assert "rules:loud returned 1 result for 40 rows" in done.stdout
    assert "batches are called in halves" in alone.command("status", "1").stdout


@pytest.mark.slow
def test_what_a_run_prints_at_its_end_works_where_it_is_printed(alone: Fleet) -> None:
    (alone.folder / "rules.py").write_text(
        "def loud(rows):\n    return [{'loud': row['text'].upper()} for row in rows]\n"
    )
    done = alone.command(*RUN)
    assert done.returncode == 0, done.stderr + logs(alone.folder)
    commands = re.findall(r"nightshift ((?:sample|verify|collect) .*?)    ", done.stdout)
    assert [each.split()[0] for each in commands] == ["sample", "verify", "collect"]
    for command in commands:
        followed = alone.command(*shlex.split(command))
        assert followed.returncode == 0, f"{command}: {followed.stderr}"
    assert (alone.folder / "a-answers.parquet").exists()


def test_a_job_without_an_answer_is_not_called_done_and_names_the_kinds_of_its_errors(
    alone: Fleet,
) -> None:
    (alone.folder / "rules.py").write_text("def loud(rows):\n    raise ValueError('not yet')\n")
    done = alone.command(*RUN)
    assert done.returncode == 1, done.stderr + logs(alone.folder)
    assert "a  job 1  no row has an answer" in done.stdout  # the line above may still say paused
    assert "0 done, 250 failed (250 function_error)" in done.stdout
    assert "nightshift errors 1" in done.stdout
    assert not re.search(r"completed|nightshift (sample|verify|collect)", done.stdout)
