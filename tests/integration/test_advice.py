"""Every command that is advised works where it is read: it is read, typed, and the job moves."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fleet import Fleet, function_spec, logs, output_ids, wait_until, write_rows
from tests.support.serve import CLIENT_SECONDS, Door

GATE = """
import time
from pathlib import Path

def gated(rows):
    (Path(__file__).parent / "began").touch()
    while not (Path(__file__).parent / "open").exists():
        time.sleep(0.02)
    return [{"loud": row["text"].upper()} for row in rows]

def loud(rows):
    return [{"loud": row["text"].upper()} for row in rows]
"""
"""`gated` answers nothing until the gate is open, and tells that it was called."""

IN_BACKGROUND = ("nightshift reaper", "nightshift-worker")
"""Commands that do not end by themselves."""


class Folder:
    """Jobs of one folder or fleet, and a person who types what is advised."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.specs: dict[str, Path] = {}
        self.ids: dict[str, list[str]] = {}
        (fleet.folder / "rules.py").write_text(GATE)

    def spec(self, name: str, function: str = "loud", /, **sections: Any) -> str:
        folder = self.fleet.folder
        self.ids[name] = write_rows(folder / f"in-{name}", [("a.jsonl", 6)])
        given = {
            "engine": {"backend": "function", "callable": f"rules:{function}"},
            "batch": {"rows": 2},
            "limits": {"max_parallel": 1},  # a pause finds batches that nobody has
            **sections,
        }
        made = function_spec(name, folder / f"in-{name}", folder / f"out-{name}", **given)
        self.specs[name] = self.fleet.spec(made)
        return str(self.specs[name])

    def say(self, *arguments: str) -> str:
        done = self.fleet.command(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}{done.stdout}"
        return done.stdout + done.stderr

    def reasons(self, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.say("explain", job, "--json"))["reasons"]
        return found

    def advised(self, job: str, kind: str, beginning: str = "") -> str:
        """The command that `explain` gives for a reason of this kind, once there is one that begins so."""

        def look() -> str | None:
            commands = (r["command"] or "" for r in self.reasons(job) if r["kind"] == kind)
            return next((each for each in commands if each.startswith(beginning)), None)

        return str(wait_until(look, what=f"{kind} of {job}"))

    def follow(self, command: str, job: str) -> None:
        """Types a command; SPEC is the spec of the job."""
        for part in command.split(";"):
            words = part.strip().replace("SPEC", str(self.specs[job])).split()
            assert words[0] in ("nightshift", "nightshift-worker"), command
            if part.strip().startswith(IN_BACKGROUND):
                module = "worker" if words[0] == "nightshift-worker" else "producer"
                self.fleet.start(f"nightshift.{module}.cli", *words[1:])
                continue
            done = self.fleet.command(*words[1:])
            assert done.returncode in (0, 1), f"{part}: {done.stderr}{logs(self.fleet.folder)}"

    def is_done(self, job: str) -> bool:
        return bool(self.fleet.status(job)["status"] == "completed")

    def finished(self, job: str) -> None:
        wait_until(lambda: self.is_done(job), what=f"the end of {job}")
        assert output_ids(self.fleet.folder / f"out-{job}") == self.ids[job]


def begun(folder: Path) -> None:
    wait_until((folder / "began").exists, what="a call of the function")


def quoted(said: str) -> str:
    found = re.search(r"`(nightshift [^`]*)`", said)
    assert found is not None, said
    return found[1]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Folder]:
    """A folder without anything but code."""
    found = Folder(Fleet(tmp_path))
    yield found
    found.fleet.end()


@pytest.mark.slow
def test_a_job_that_is_paused_under_its_run_goes_on_by_what_pause_says(home: Folder) -> None:
    """`nightshift resume` once made it "running" for ever: no run was up."""
    fleet = home.fleet
    running = fleet.start("nightshift.producer.cli", "run", home.spec("held", "gated"))
    begun(fleet.folder)
    command = quoted(home.say("pause", "held"))
    (fleet.folder / "open").touch()
    home.follow(command, "held")  # while the run ends, which it waits for
    home.finished("held")
    assert running.wait(60) == 3


@pytest.mark.slow
def test_what_a_run_that_ends_paused_prints_and_what_is_said_after_it_lets_the_job_go_on(
    home: Folder,
) -> None:
    fleet = home.fleet
    running = fleet.start("nightshift.producer.cli", "run", home.spec("held", "gated"))
    begun(fleet.folder)
    home.say("pause", "held")
    (fleet.folder / "open").touch()
    assert running.wait(60) == 3
    printed = (fleet.folder / "nightshift.producer.cli.0.log").read_text()
    assert "nightshift run SPEC    resumes the job" in printed
    assert "nightshift resume" not in printed
    assert "nightshift run SPEC    resumes the job" in home.say("status", "held") or (
        home.advised("held", "paused") == "nightshift run SPEC"
    )
    # Who resumes all the same hears that nobody works.
    command = quoted(home.say("resume", "held"))
    assert home.advised("held", "no_run") == command
    waits = fleet.command("wait", "held")
    assert waits.returncode == 2
    assert quoted(waits.stderr) == command
    home.follow(command, "held")
    home.finished("held")


@pytest.mark.slow
def test_a_second_job_in_a_folder_is_run_behind_the_run_of_the_first(home: Folder) -> None:
    fleet = home.fleet
    running = fleet.start("nightshift.producer.cli", "run", home.spec("first", "gated"))
    begun(fleet.folder)
    said = home.say("submit", home.spec("second"))
    command = home.advised("second", "other_engine_only")
    assert command == quoted(said) == "nightshift wait 1; nightshift run SPEC"
    (fleet.folder / "open").touch()
    home.follow(command, "second")
    home.finished("second")
    home.finished("first")
    assert running.wait(60) == 0


@pytest.mark.slow
def test_rows_that_failed_run_again_by_what_the_summary_says(home: Folder) -> None:
    code = home.fleet.folder / "rules.py"
    code.write_text(GATE.replace('[{"loud"', '[{"loud": 1 / ("-5" not in row["id"]), "l"'))
    spec = home.spec("some")
    first = home.fleet.command("run", spec)
    assert first.returncode == 1, first.stderr
    code.write_text(GATE.replace('[{"loud"', '[{"loud": 1.0, "l"'))
    (command,) = re.findall(r"(nightshift retry .*?)    runs them again", first.stdout)
    home.follow(command, "some")
    home.finished("some")
    assert home.fleet.status("some")["rows_failed"] == 0


@pytest.mark.slow
def test_pages_of_a_folder_that_nobody_works_in_name_the_command_that_works_after_them(
    home: Folder,
) -> None:
    fleet = home.fleet
    fleet.command("run", home.spec("other"))
    home.say("submit", home.spec("waiting"))
    pages = fleet.start("nightshift.producer.cli", "console")
    log = fleet.folder / f"nightshift.producer.cli.{len(fleet.processes) - 1}.log"
    link = wait_until(lambda: re.search(r"http://\S+/enter\S+", log.read_text()), what="a link")
    with httpx.Client(follow_redirects=True, timeout=CLIENT_SECONDS) as browser:
        base = link[0].partition("/enter")[0]
        browser.get(link[0])
        page = browser.get(f"{base}/jobs/2").text
        assert "Ctrl-C ends these pages" in page
        (command,) = re.findall(r"<code>(nightshift run[^<]*)</code>", page)
        refused = fleet.command("run", str(home.specs["waiting"]))
        assert refused.returncode == 2
        assert "another `nightshift console` uses" in refused.stderr
    pages.terminate()
    assert pages.wait(60) == 0
    home.follow(command, "waiting")
    home.finished("waiting")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[Folder, Door]]:
    """`nightshift serve` with a fleet of its own, whose worker is in the pool `default`."""
    remote = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    door = Door(tmp_path / "door", "", "", {"m": {"engine": remote}})
    for name in ("DATABASE_URL", "BROKER_URL", "SERVE_STORE"):
        del door.environment[f"NIGHTSHIFT_{name}"]
    door.environment |= {
        "NIGHTSHIFT_ALLOWED_MODULES": "rules",
        "NIGHTSHIFT_CALLABLE_PATHS": str(door.folder),
    }
    yield Folder(door), door
    door.end()


@pytest.mark.slow
def test_under_serve_a_job_in_a_pool_without_workers_moves_by_what_every_door_says(
    serving: tuple[Folder, Door],
) -> None:
    """`nightshift-worker` is refused there, and so is `nightshift run`."""
    folder, door = serving
    door.serve()
    folder.say("submit", folder.spec("far", pool="gpus"))
    # Another command is advised until the worker of the other pool has started.
    command = folder.advised("far", "no_worker", "nightshift set")
    at = f"http://127.0.0.1:{door.port}"
    by_api = httpx.get(f"{at}/api/jobs/1/explain", timeout=CLIENT_SECONDS).json()["reasons"]
    assert command in [each["command"] for each in by_api]
    assert f"<code>{command}</code>" in httpx.get(f"{at}/jobs/1", timeout=CLIENT_SECONDS).text
    assert command == "nightshift set 1 --pool default"
    folder.follow(command, "far")
    folder.finished("far")

    folder.say("submit", folder.spec("held", "gated"))
    begun(door.folder)
    message = httpx.post(f"{at}/api/jobs/2/pause", timeout=CLIENT_SECONDS).json()["message"]
    assert (
        quoted(message)
        == quoted(folder.say("pause", "held") + message)
        == folder.advised("held", "paused")
    )
    (door.folder / "open").touch()
    folder.follow(quoted(message), "held")
    folder.finished("held")


@pytest.mark.slow
def test_in_a_fleet_reaper_worker_and_resume_are_advised_and_end_the_job(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    fleet = Fleet(
        tmp_path / "fleet",
        NIGHTSHIFT_DATABASE_URL=database_url,
        NIGHTSHIFT_BROKER_URL=redis_url,
        NIGHTSHIFT_ALLOWED_MODULES="rules",
        NIGHTSHIFT_CALLABLE_PATHS=str(tmp_path / "fleet"),
    )
    folder = Folder(fleet)
    try:
        said = folder.say("submit", folder.spec("far", pool="gpus"))
        assert "no worker runs the job" not in said
        assert quoted(folder.say("pause", "far")) == folder.advised("far", "paused")
        folder.follow(folder.advised("far", "paused"), "far")
        folder.follow(folder.advised("far", "no_reaper"), "far")
        folder.follow(folder.advised("far", "no_worker"), "far")
        folder.finished("far")
    finally:
        fleet.end()
