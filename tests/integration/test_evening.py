"""An evening of a fleet: jobs and workers come and go, users change their minds, and at the end every
row is where it belongs and the history explains every attempt.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
from click.testing import Result
from typer.testing import CliRunner

from nightshift.common.states import Outcome
from nightshift.producer.cli.app import app
from tests.support.fleet import Fleet, function_spec, kill_tree, logs, wait_until, write_rows
from tests.support.remote import Remote

Ask = Callable[[str], list[tuple[Any, ...]]]

RULES = """
import pathlib, time

BRAKE = pathlib.Path(__file__).with_name("brake")

def shout(rows):
    for _ in rows:
        if BRAKE.exists():
            time.sleep(0.02)
    return [{"loud": row["text"].upper()} for row in rows]
"""
"""While the brake is there, rows take their time: what happens in the evening meets work under way."""


class Evening:
    """The command line, the jobs and the workers of one evening."""

    def __init__(self, fleet: Fleet, remote: Remote) -> None:
        self.fleet = fleet
        self.remote = remote
        self.ids: dict[str, list[str]] = {}
        self.brake = fleet.folder / "brake"
        self.brake.touch()
        (fleet.folder / "rules.py").write_text(RULES)
        fleet.environment["NIGHTSHIFT_API_KEYS"] = json.dumps({remote.url: "sk-evening"})

    def tell(self, *arguments: str, exit_code: int = 0) -> Result:
        """Gives a command in this process, since an evening has many of them."""
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == exit_code, (arguments, done.output, logs(self.fleet.folder))
        return done

    def ask(self, *arguments: str) -> Any:
        """What a command says to a program."""
        return json.loads(self.tell(*arguments, "--json").stdout)

    def submit(self, job: str, *files: tuple[str, int], **sections: Any) -> None:
        """A job of the function; sections are laid over its spec."""
        source = self.fleet.folder / f"in-{job}"
        self.ids[job] = write_rows(source, files)
        sections = {"batch": {"rows": 100}, **sections}
        spec = function_spec(job, source, self.fleet.folder / job, **sections)
        self.tell("submit", str(self.fleet.spec(spec)))

    def submit_prompt(self, job: str, prompt: str, rows: int, **limits: Any) -> None:
        """A job of the other model, over so much mail of the day."""
        engine = {"backend": "openai", "model": "m", "base_url": self.remote.url}
        task = {"kind": "generate", "prompt": prompt}
        self.submit(job, ("mail.jsonl", rows), engine=engine, task=task, limits=limits)

    def state(self, job: str) -> str:
        return str(self.ask("status", job)["status"])

    def reasons(self, job: str) -> set[str]:
        return {reason["kind"] for reason in self.ask("explain", job)["reasons"]}

    def running(self, job: str) -> list[dict[str, Any]]:
        """The leases of a job that run."""
        found: list[dict[str, Any]] = self.ask("history", job, "--outcome", "running")["attempts"]
        return found

    def slots(self) -> dict[str, dict[str, Any]]:
        """Each worker has one slot: the slots by the names of the workers."""
        return {slot["supervisor"]: slot for slot in self.ask("workers")["workers"]}

    def are_at_work(self, names: list[str]) -> bool:
        """Whether each of these workers holds rows. There are tickets enough for them to go on."""
        slots = self.slots()
        return all(slots[name]["rows_leased"] for name in names)

    def come(self, count: int) -> tuple[list[subprocess.Popen[bytes]], list[str]]:
        """So many workers come and take batches: their processes and, in another order, their names."""
        known = set(self.slots())
        came = [self.fleet.worker("--slots", "1") for _ in range(count)]

        def names() -> list[str]:
            slots = self.slots()
            busy = [name for name, slot in slots.items() if slot["rows_leased"]]
            return sorted(set(busy) - known)

        wait_until(lambda: len(names()) == count, what=f"{count} workers with work")
        return came, names()


@pytest.fixture
def remote() -> Iterator[Remote]:
    with Remote().running() as server:
        yield server


@pytest.fixture
def evening(
    fleet: Fleet, remote: Remote, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Evening:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return Evening(fleet, remote)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_an_evening_every_row_is_where_it_belongs_and_history_explains_every_attempt(
    evening: Evening, ask: Ask
) -> None:
    evening.submit("tickets", ("a.parquet", 36000), ("b.jsonl", 24000))
    # More than two workers hold at once: the last batch of a paused job ends the job.
    evening.submit_prompt("broken", "Answer {{ text.subject }}", 12000)
    evening.fleet.reaper()
    first, their_names = evening.come(2)
    a_broken_prompt_pauses_its_job_and_is_mended(evening)
    an_urgent_job_goes_before_the_one_under_way(evening)
    a_job_rests_while_it_is_paused(evening)
    second = evening.come(2)[1]
    wait_until(lambda: evening.are_at_work(their_names), what="work for those that go")
    workers_are_killed_and_leave(first)
    machines_are_taken_out_of_service_and_back(evening, second)
    a_mistake_is_cancelled_and_deleted(evening)
    more_tickets_come(evening)
    evening.brake.unlink()
    for job in ("tickets", "mail", "urgent"):
        everything_is_where_it_belongs(evening, job)
    mail = evening.ask("status", "mail")
    assert mail["finished_at"] < mail["deadline"]["finish_by"]
    history_explains_every_attempt(evening, ask)


def a_broken_prompt_pauses_its_job_and_is_mended(evening: Evening) -> None:
    wait_until(lambda: evening.state("broken") == "paused", what="the pause of the broken prompt")
    reason = evening.ask("explain", "broken")["reasons"][0]
    assert reason["kind"] == "paused"
    assert "failed" in reason["sentence"]
    assert {row["kind"] for row in evening.ask("errors", "broken")["rows"]} == {"render_error"}
    evening.tell("cancel", "broken")
    evening.submit_prompt("mail", "Answer {{ text }}", 1000, finish_by="8h")


def an_urgent_job_goes_before_the_one_under_way(evening: Evening) -> None:
    evening.submit("urgent", ("calls.jsonl", 40), priority=10)
    evening.tell("wait", "urgent")
    assert evening.state("tickets") == "running"


def a_job_rests_while_it_is_paused(evening: Evening) -> None:
    evening.tell("pause", "tickets")
    wait_until(lambda: not evening.running("tickets"), what="the end of the batches under way")
    assert evening.state("tickets") == "paused"
    evening.tell("resume", "tickets")


def workers_are_killed_and_leave(workers: list[subprocess.Popen[bytes]]) -> None:
    killed, asked = workers
    kill_tree(killed)
    asked.send_signal(signal.SIGTERM)
    assert asked.wait(200) == 0


def machines_are_taken_out_of_service_and_back(evening: Evening, names: list[str]) -> None:
    drained, cordoned = names
    evening.tell("drain", drained)
    evening.tell("cordon", cordoned)
    wait_until(
        lambda: not evening.slots()[drained]["rows_leased"] and not evening.running("tickets"),
        what="the end of the work on machines out of service",
    )
    assert evening.state("tickets") == "running"
    # The slot of the killed worker counts for a minute.
    wait_until(lambda: "cordoned" in evening.reasons("tickets"), what="the reason", seconds=300)
    for name in names:
        evening.tell("uncordon", name)


def a_mistake_is_cancelled_and_deleted(evening: Evening) -> None:
    evening.submit("mistake", ("all.jsonl", 100))
    evening.tell("cancel", "mistake")
    wait_until(lambda: evening.ask("status", "mistake")["finished_at"], what="the end of a mistake")
    evening.tell("delete", "mistake", "--output")
    assert "mistake" not in {job["name"] for job in evening.ask("jobs")}


def more_tickets_come(evening: Evening) -> None:
    evening.ids["tickets"] += write_rows(evening.fleet.folder / "in-tickets", [("c.jsonl", 500)])
    evening.tell("submit", "--append", "tickets")


def everything_is_where_it_belongs(evening: Evening, job: str) -> None:
    evening.tell("wait", job)
    evening.tell("verify", job)
    parts = f"read_parquet('{evening.fleet.folder / job}/part-*.parquet')"
    text = "loud" if job != "mail" else "output"
    rows = duckdb.sql(f"SELECT id, {text} FROM {parts} ORDER BY row_index").fetchall()
    assert [name for name, _ in rows] == evening.ids[job]
    assert all(answer.endswith(f"SAY {name}".upper()) for name, answer in rows)


def history_explains_every_attempt(evening: Evening, ask: Ask) -> None:
    explained = []
    for job, leases in ask(
        "SELECT batches.job_id, count(*) FROM attempts JOIN batches ON batches.id = batch_id GROUP BY 1"
    ):
        attempts = evening.ask("history", str(job), "-n", "0")["attempts"]
        assert len(attempts) == leases
        explained += attempts
    assert {each["outcome"] for each in explained} <= set(Outcome)
    assert all(each["why"] and each["worker"] for each in explained)
    assert {"done", "lost"} <= {each["outcome"] for each in explained}
