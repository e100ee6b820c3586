"""Rows that failed run again: ledger, files and what people see agree before, during and after."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch, failures, leasing, retries
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import job_end, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import failed_rows, live_parts
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState, RowErrorKind
from nightshift.producer import retry as retry_job
from nightshift.producer.cli.app import app
from nightshift.producer.reaper import finish
from nightshift.producer.results import part_files
from nightshift.producer.results.collect import collect
from nightshift.producer.results.sample import sample
from nightshift.producer.retry import retry
from nightshift.producer.submit.submit import submit
from nightshift.producer.verify.verify import verify
from nightshift.worker.engines.function.host import Rows
from nightshift.worker.runner import Runner
from tests.integration.test_look import Work
from tests.support.child import child_of
from tests.support.fleet import (
    Fleet,
    function_spec,
    kill_tree,
    logs,
    output_ids,
    wait_until,
    write_rows,
)
from tests.support.functions import engine_of

Errors = dict[int, tuple[str, str]]
Function = Callable[[Rows], Sequence[dict[str, Any]]]


def number(row: dict[str, Any]) -> int:
    return int(row["id"].rpartition("-")[2])


def loud(row: dict[str, Any]) -> dict[str, Any]:
    return {"loud": row["text"].upper()}


def moody(*failing: int, strange: Sequence[int] = ()) -> Function:
    """Raises for rows whose number ends with a digit in `failing`, and gives those in `strange` a
    value of another type."""

    def function(rows: Rows) -> list[dict[str, Any]]:
        if any(number(row) % 10 in failing for row in rows):
            raise ValueError("not today")
        return [
            {"loud": ["not", "text"]} if number(row) % 10 in strange else loud(row) for row in rows
        ]

    return function


@dataclass
class Site:
    """A ledger, a job over real files, and a worker and a reaper without processes."""

    ledger: Ledger
    folder: Path
    job_id: int = 0
    ids: list[str] = field(default_factory=list)
    boots: int = 0

    def submit(self, form: str = "parquet", rows: int = 40, batch: int = 10) -> None:
        self.ids = write_rows(self.folder / "in", [("a.parquet", rows)])
        data = function_spec(
            "moody",
            self.folder / "in",
            self.folder / "out",
            batch={"rows": batch},
        )
        data["output"]["format"] = form
        self.job_id = submit(self.ledger, parse_spec(data, "test"), Settings()).job_id

    @property
    def job(self) -> Job:
        with self.ledger.transaction() as connection:
            found = jobs.get(connection, self.job_id)
        assert found is not None
        return found

    def runner(self, function: Function) -> Runner:
        """A child that claims once until there is nothing left."""
        self.boots += 1
        child = workers.Child(
            f"w{self.boots}", "s", "default", 0, "here", 1, self.job.spec.engine_key
        )
        with self.ledger.transaction() as connection:
            workers.register(connection, child)
        who = Claimant(child.id, "default", child.engine_key, "function", "1")
        engine = engine_of(function, "rules:moody")
        found = Runner(child_of(who, self.ledger, engine, allowed_roots=self.worker_roots()))
        found.draining.set()
        return found

    def worker_roots(self) -> tuple[str, ...]:
        """Return the allowed roots of the worker."""
        return ()

    def admit(self, most: int = 1000) -> None:
        with self.ledger.transaction() as connection:
            dispatch.admit(connection, self.job_id, most, dispatch.next_rank(connection))

    def work(self, function: Function) -> JobState:
        """Everything that waits is run, and the job is finished."""
        self.run(function)
        return self.finish()

    def run(self, function: Function, most: int = 1000) -> None:
        """A worker runs so many batches."""
        self.admit(most)
        runner = self.runner(function)
        runner.work("poll", wait=False)
        assert runner.window.wait_empty(120)

    def finish(self) -> JobState:
        finish.finish(self.ledger, self.job_id)
        return self.job.state

    def retry(self, kind: RowErrorKind | None = None, *, dead: bool = False) -> int:
        return retry(self.ledger, self.job, failed=not dead, dead=dead, kind=kind).rows

    def ask(self, question: str) -> list[Any]:
        with self.ledger.transaction() as connection:
            return list(connection.execute(text(question)))

    def agrees(self) -> Errors:
        """Holds counters, failed_rows, parts, collect and verify against each other; gives back
        the rows that failed."""
        return agreed(self.ledger, self.job, self.folder)

    def output(self) -> list[dict[str, Any]]:
        """Return the rows in the directory of the job by `row_index`, as a reader of datasets finds them."""
        out = self.folder / "out"
        if self.job.spec.output.format == "parquet":
            table = ds.dataset(out).to_table()
            columns = {*table.column_names}
            rows: list[dict[str, Any]] = table.to_pylist()
        else:
            # Arrow's own scan of a JSON dataset can deadlock in its threads (pyarrow 26.0.1). Names that begin with
            # a dot or an underscore are skipped, as Arrow does.
            files = [
                path
                for path in out.rglob("*")
                if path.is_file()
                and all(part[0] not in "._" for part in path.relative_to(out).parts)
            ]
            rows = [json.loads(line) for path in files for line in path.read_bytes().splitlines()]
            columns = {name for row in rows for name in row}
        assert columns == {"row_index", "id", "loud", "error"}
        return sorted(rows, key=lambda row: int(row["row_index"]))


def agreed(ledger: Ledger, job: Job, folder: Path) -> Errors:
    assert [str(finding) for finding in verify(ledger, job)] == []
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
        listed = failed_rows.first(connection, job.id, kind=None, limit=100_000)
        kinds = failed_rows.count_by_kind(connection, job.id)
        parts = live_parts.parts_between(connection, job.id, 0, 10**6)
        finished = set(live_parts.finished_rows(connection, job.id))
    failed = {row["row_index"]: (row["kind"], row["message"]) for row in listed}
    assert len(listed) == len(failed) == progress["rows_failed"] == sum(kinds.values())
    lines = [
        line
        for part in parts
        for batch in part_files.kept_rows(job, part)
        for line in batch.to_pylist()
    ]
    unburied = failed.keys() - {line["row_index"] for line in lines}
    assert {
        line["row_index"]: (line["error"]["kind"], line["error"]["message"])
        for line in lines
        if line["error"] is not None
    } == {row: error for row, error in failed.items() if row not in unburied}
    assert {failed[row][0] for row in unburied} <= {"batch_dead"}
    over = progress["rows_done"] + progress["rows_failed"]
    assert len(lines) + len(unburied) == over
    assert {line["row_index"] for line in lines} == finished
    target = folder / "all.parquet"
    assert collect(ledger, job, str(target), partial=True, force=True) == len(lines)
    if lines:
        assert {row["row_index"] for row in sample(ledger, job, 1000, 0).rows} == finished
    manifest = Path(job.output_uri) / "_manifest.json"
    assert manifest.exists() == (job.closed_at is not None)
    if manifest.exists():
        said = json.loads(manifest.read_text())
        assert (said["rows"], said["rows_failed"]) == (over, progress["rows_failed"])
        assert said["complete"] == (over == progress["rows_total"])
    return failed


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


@pytest.fixture
def nightshift(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Runs the command on this test's ledger."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


# Answers, kinds, formats.


@pytest.mark.parametrize("form", ["parquet", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_new_answers_go_into_the_one_part_of_their_batch_kind_by_kind(
    site: Site, form: str
) -> None:
    site.submit(form)
    assert site.work(moody(7, strange=[3])) is JobState.COMPLETED
    before = site.agrees()
    assert {row: kind for row, (kind, _) in before.items()} == {
        row: "function_error" if row % 10 == 7 else "bad_type"
        for row in (3, 7, 13, 17, 23, 27, 33, 37)
    }

    assert site.retry(RowErrorKind.BAD_TYPE) == 4
    assert site.agrees().keys() == {7, 17, 27, 37}
    assert site.work(moody(3)) is JobState.COMPLETED
    again = site.agrees()
    assert again.keys() == before.keys()
    assert {kind for kind, _ in again.values()} == {"function_error"}

    assert site.retry() == 8
    assert site.agrees() == {}
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}
    rows = site.output()
    assert [row["id"] for row in rows] == site.ids
    assert [row["loud"] for row in rows] == [f"SAY {each.upper()}" for each in site.ids]
    assert len(list((site.folder / "out").glob("part-*"))) == 4


@pytest.mark.parametrize("form", ["parquet", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_rows_of_a_function_that_had_never_answered_find_its_columns_in_a_retry(
    site: Site, form: str
) -> None:
    site.submit(form)
    assert site.work(moody(*range(10))) is JobState.COMPLETED
    assert len(site.agrees()) == 40
    site.retry()
    site.run(moody(*range(9)))
    assert len(site.agrees()) == 36
    assert site.finish() is JobState.COMPLETED
    assert site.agrees().keys() == {row for row in range(40) if row % 10 != 9}
    assert [row["loud"] for row in site.output()][8:11] == [None, "SAY A-9", None]
    assert site.retry() == 36
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


# Dead batches.


@pytest.mark.parametrize("form", ["parquet", pytest.param("jsonl", marks=pytest.mark.slow)])
def test_batches_that_died_without_their_source_run_again_once_it_is_back(
    site: Site, form: str
) -> None:
    site.submit(form)
    source = site.folder / "in" / "a.parquet"
    source.rename(site.folder / "away.parquet")
    site.run(moody())
    assert site.agrees().keys() == set(range(40))
    assert site.finish() is JobState.FAILED
    assert {kind for kind, _ in site.agrees().values()} == {"batch_dead"}

    assert site.retry(RowErrorKind.FUNCTION_ERROR) == 0
    assert site.retry(dead=True) == 40
    assert site.agrees() == {}
    assert site.work(moody()) is JobState.FAILED
    assert len(site.agrees()) == 40

    (site.folder / "away.parquet").rename(source)
    assert site.retry(dead=True) == 40
    assert site.work(moody(5)) is JobState.COMPLETED
    assert site.agrees().keys() == {5, 15, 25, 35}
    assert [row["id"] for row in site.output()] == site.ids


def test_answers_outlive_a_retry_that_dies(site: Site) -> None:
    site.submit()
    site.work(moody(7, strange=[3]))
    site.retry(RowErrorKind.FUNCTION_ERROR)
    source = site.folder / "in" / "a.parquet"
    source.rename(site.folder / "away.parquet")
    assert site.work(moody()) is JobState.FAILED
    failed = site.agrees()
    assert {row: kind for row, (kind, _) in failed.items()} == {
        row: "batch_dead" if row % 10 == 7 else "bad_type" for row in (3, 7, 13, 17, 23, 27, 33, 37)
    }
    (site.folder / "away.parquet").rename(source)
    assert site.retry(RowErrorKind.BATCH_DEAD) == 4
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees().keys() == {3, 13, 23, 33}
    assert [row["id"] for row in site.output()] == site.ids


def test_tokens_of_a_retry_that_dies_are_those_of_its_part(ledger: Ledger, tmp_path: Path) -> None:
    work = Work(ledger, tmp_path)
    work.to_the_end()
    assert retry(ledger, work.job, failed=True, dead=False, kind=None).rows == 3
    assert verify(ledger, work.job) == []
    for lease in work.claim():
        with ledger.transaction() as connection:
            failures.fail(
                connection, lease, "no luck", permanent=True, max_attempts=1, backoff_seconds=1
            )
    assert verify(ledger, work.job) == []
    finish.finish(ledger, work.job_id)
    assert work.job.state is JobState.FAILED
    assert verify(ledger, work.job) == []


# Many rows.


def test_a_large_retry_goes_in_pieces_and_a_pause_comes_in_between(
    site: Site, second_ledger: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit()
    site.work(moody(7))
    monkeypatch.setattr(retry_job, "ROWS_A_PIECE", 1)
    piece, other, pieces = retries.retry, second_ledger(), 0

    def then_pause(*given: Any, **named: Any) -> Retried:
        nonlocal pieces
        if pieces == 1:
            with other.transaction() as connection:
                jobs.pause(connection, site.job_id)
        pieces += 1
        return piece(*given, **named)

    monkeypatch.setattr(retries, "retry", then_pause)
    found = retry(site.ledger, site.job, failed=True, dead=False, kind=None)
    assert (found.rows, found.batches, found.reopened) == (4, 4, True)
    assert found.state is JobState.PAUSED
    assert pieces == 5
    assert not (site.folder / "out" / "_manifest.json").exists()
    with site.ledger.transaction() as connection:
        jobs.resume(connection, site.job_id)
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


# Cut short.


def test_a_job_that_is_cancelled_in_a_retry_keeps_the_old_errors_of_what_had_not_run(
    site: Site,
) -> None:
    site.submit()
    site.work(moody(7))
    before = site.agrees()
    site.retry()
    site.run(moody(), most=2)
    assert site.agrees() == {}
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, site.job_id)
    assert site.agrees() == {}
    assert site.finish() is JobState.CANCELLED
    assert site.agrees() == {row: before[row] for row in (27, 37)}
    assert [row["loud"] is None for row in site.output()].count(True) == 2
    with pytest.raises(BadInput, match="is final"):
        site.retry()


def test_a_child_that_drains_in_a_retry_keeps_the_rows_it_has_finished(site: Site) -> None:
    site.submit(rows=10)
    site.work(moody(3, 5, 7, 9))
    assert site.retry() == 4
    calling, leave = threading.Event(), threading.Event()

    def one_by_one(rows: Rows) -> list[dict[str, Any]]:
        if len(rows) > 1:
            raise ValueError("one at a time")
        if number(rows[0]) == 7:
            calling.set()
            leave.wait(60)
        return [loud(row) for row in rows]

    site.admit()
    runner = site.runner(one_by_one)
    runner.work("poll", wait=False)
    assert calling.wait(60)
    assert site.agrees() == {}
    draining = threading.Thread(target=runner.drain, args=(lambda: 0.1,))
    draining.start()
    [held] = runner.window.held()
    assert held.work is not None
    assert held.work.stopped.wait(60)
    leave.set()
    draining.join(60)
    assert site.agrees() == {}
    assert site.ask("SELECT rows_done FROM job_progress") == [(9,)]
    assert site.ask("SELECT state, redo_count, losses FROM batches") == [("pending", 1, 0)]
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_row_that_kills_the_engine_in_a_retry_is_found_and_the_others_are_answered(
    site: Site,
) -> None:
    site.submit(rows=16, batch=16)
    site.work(moody(*range(10)))
    assert site.retry() == 16
    deaths = 0
    while site.job.state is JobState.RUNNING:
        site.admit()
        runner = site.runner(moody())
        leases = runner._claim("poll")
        assert len(leases) == 1
        assert deaths < 12
        if 11 in set(leases[0].todo) and not leases[0].isolated:
            deaths += 1
            with site.ledger.transaction() as connection:
                leasing.lose_owner(connection, leases[0].owner, "killed")
        else:
            runner._start(leases)
            assert runner.window.wait_empty(120)
        site.agrees()
        site.finish()
    assert {row: kind for row, (kind, _) in site.agrees().items()} == {11: "engine_died"}
    assert deaths <= 4 + 4


# The command.


def test_the_command_says_what_runs_again_and_who_does_it(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.work(moody(7, strange=[3]))
    said = nightshift("retry", "moody", "--failed", "--kind", "bad_type")
    assert said.exit_code == 0, said.stderr
    assert said.stdout == (
        "job 1 (moody): 4 rows in 4 batches run again; `nightshift wait 1` waits for it\n"
    )
    with site.ledger.transaction() as connection:
        jobs.pause(connection, site.job_id)
    said = nightshift("retry", "1", "--failed", "--dead")
    assert said.stdout == "job 1 (moody): no such rows, nothing runs again\n"
    with site.ledger.transaction() as connection:
        jobs.resume(connection, site.job_id)
    site.work(moody())
    with site.ledger.transaction() as connection:
        connection.execute(text("UPDATE jobs SET state = 'paused', closed_at = NULL"))
    said = nightshift("retry", "1", "--failed", "--dead")
    assert said.stdout == (
        "job 1 (moody): 4 rows in 4 batches run again; `nightshift resume 1` continues the job\n"
    )
    with site.ledger.transaction() as connection:
        jobs.resume(connection, site.job_id)
    site.work(moody(7))
    said = nightshift("retry", "1", "--dead")
    assert (said.exit_code, "nothing runs again" in said.stdout) == (0, True)
    assert site.job.state is JobState.COMPLETED
    assert len(site.agrees()) == 4


def test_a_failed_job_that_waits_for_its_engine_goes_on(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    with site.ledger.transaction() as connection:
        jobs.fail(connection, site.job_id, "the engine could not be loaded")
    assert site.finish() is JobState.FAILED
    assert nightshift("retry", "1", "--failed").stdout == (
        "job 1 (moody): continues; `nightshift wait 1` waits for it\n"
    )
    assert site.work(moody()) is JobState.COMPLETED
    assert site.agrees() == {}


def test_a_job_whose_files_could_not_be_finished_is_finished_anew(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    site.submit()
    site.run(moody())
    with site.ledger.transaction() as connection:
        hold = job_end.take(connection, site.job_id, "test")
        job_end.abandon(connection, hold, "its output could not be finished: no part")
    assert site.job.state is JobState.FAILED
    assert "its files are finished anew" in nightshift("retry", "1", "--failed").stdout
    assert site.finish() is JobState.COMPLETED
    assert site.agrees() == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nobody", "--failed"], "there is no job 'nobody'"),
        (["1"], "say which rows run again: --failed"),
        (["1", "--failed", "--kind", "sad"], "--kind 'sad' is not one of bad_record"),
        (["1", "--dead", "--kind", "refused"], "--kind chooses among the rows of --failed"),
        (["1", "--failed"], "job 1 is cancelled, which is final"),
    ],
)
def test_what_cannot_be_retried_is_one_sentence(
    site: Site, nightshift: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    site.submit(rows=1)
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, site.job_id)
    said = nightshift("retry", *arguments)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"nightshift: {sentence}")
    assert said.stderr.count("\n") == 1


# Real processes.

HELD = """
import time
from pathlib import Path

def held(rows):
    here = Path(__file__).parent
    while any(row["id"].endswith("7") for row in rows) and (here / "hold").exists():
        time.sleep(0.01)
    if any(row["id"].endswith("7") for row in rows) and not (here / "mended").exists():
        raise ValueError("a seven")
    return [{"loud": row["text"].upper()} for row in rows]
"""


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    (fleet.folder / "rules.py").write_text(HELD)
    return fleet


@pytest.mark.slow
def test_a_fleet_retries_again_after_a_failure_and_after_a_kill(
    fleet: Fleet, ledger: Ledger, nightshift: Callable[..., Result], tmp_path: Path
) -> None:
    ids = write_rows(tmp_path / "in", [("a.parquet", 60), ("b.jsonl", 40)])
    spec = function_spec(
        "held",
        tmp_path / "in",
        tmp_path / "out",
        engine={"backend": "function", "callable": "rules:held"},
        batch={"rows": 20},
    )
    job_id = submit(ledger, parse_spec(spec, "test"), Settings()).job_id

    def job() -> Job:
        with ledger.transaction() as connection:
            found = jobs.get(connection, job_id)
        assert found is not None
        return found

    def ended() -> Job:
        wait_until(lambda: job().closed_at is not None, what="the end of the job")
        return job()

    sevens = {row for row, each in enumerate(ids) if each.endswith("7")}
    fleet.reaper()
    worker = fleet.worker()
    assert ended().state is JobState.COMPLETED, logs(tmp_path)
    assert agreed(ledger, job(), tmp_path).keys() == sevens

    assert nightshift("retry", "held", "--failed").exit_code == 0
    assert ended().state is JobState.COMPLETED
    assert agreed(ledger, job(), tmp_path).keys() == sevens
    assert len(list((tmp_path / "out").glob("part-*-a2.parquet"))) == 5

    (tmp_path / "hold").touch()
    assert nightshift("retry", "held", "--failed", "--kind", "function_error").exit_code == 0

    def held() -> bool:
        with ledger.transaction() as connection:
            return jobs.progress(connection, job_id)["batches_leased"] > 0

    wait_until(held, what="a lease of the retry")
    assert agreed(ledger, job(), tmp_path) == {}
    kill_tree(worker)
    assert output_ids(tmp_path / "out") == ids
    (tmp_path / "mended").touch()
    (tmp_path / "hold").unlink()
    fleet.worker()
    assert ended().state is JobState.COMPLETED, logs(tmp_path)
    assert agreed(ledger, job(), tmp_path) == {}
    assert output_ids(tmp_path / "out") == ids


@pytest.mark.slow
def test_run_goes_on_with_a_retried_job_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path)
    try:
        (tmp_path / "rules.py").write_text(HELD)
        ids = write_rows(tmp_path / "in", [("a.parquet", 40)])
        output = tmp_path / "out"
        engine = {"backend": "function", "callable": "rules:held"}
        data = function_spec("held", tmp_path / "in", output, engine=engine, batch={"rows": 20})
        spec = str(fleet.spec(data))
        first = fleet.command("run", spec)
        assert first.returncode == 1, first.stderr + logs(tmp_path)
        assert json.loads((output / "_manifest.json").read_text())["rows_failed"] == 4
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("NIGHTSHIFT_DATABASE_URL", raising=False)
        said = CliRunner().invoke(app, ["retry", "held", "--failed"])
        assert said.stdout == (
            "job 1 (held): 4 rows in 2 batches run again; `nightshift run SPEC` works on it\n"
        ), said.stderr
        assert not (output / "_manifest.json").exists()
        (tmp_path / "mended").touch()
        second = fleet.command("run", spec)
        assert second.returncode == 0, second.stderr + logs(tmp_path)
        assert json.loads((output / "_manifest.json").read_text())["rows_failed"] == 0
        assert output_ids(output) == ids
        checked = CliRunner().invoke(app, ["verify", "held"])
        assert checked.exit_code == 0, checked.stdout
    finally:
        fleet.end()
