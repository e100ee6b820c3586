"""Commands that meet in one folder: which of them starts its Postgres, stops it and deletes it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.common.failpoints import Moment
from tests.support import homes
from tests.support.fleet import Fleet, function_spec, output_ids, wait_until, write_rows
from tests.support.rig import BUILD

pytestmark = pytest.mark.slow

CLI = "nightshift.producer.cli"


class Folder(Fleet):
    """A folder with a ledger in which no command is running, and with moments at which commands can be held."""

    def __init__(self, folder: Path) -> None:
        self.faults = folder / "faults"
        for name in ("armed", "fired"):
            (self.faults / name).mkdir(parents=True)
        path = os.pathsep.join(filter(None, [str(BUILD), os.environ.get("PYTHONPATH")]))
        super().__init__(folder, FAULTS=str(self.faults), PYTHONPATH=path)
        homes.furnish(folder / ".nightshift")

    def spec_of(self, name: str, call: str = "rules:shout") -> tuple[Path, list[str]]:
        ids = write_rows(self.folder / f"in-{name}", [("a.parquet", 20)])
        engine = {"backend": "function", "callable": call}
        source, output = self.folder / f"in-{name}", self.folder / f"out-{name}"
        return self.spec(function_spec(name, source, output, engine=engine)), ids

    def hold(self, moment: Moment) -> None:
        """The next command that reaches the moment stays there until `go`."""
        (self.faults / "armed" / f"{moment}.1").write_text("hold")

    def wait_held(self) -> None:
        wait_until(lambda: list((self.faults / "fired").iterdir()), what="the moment")

    def go(self) -> None:
        (self.faults / "go").touch()

    def log(self, number: int) -> str:
        return (self.folder / f"{CLI}.{number}.log").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    yield found
    found.end()


def test_gc_deletes_no_ledger_into_which_a_command_puts_a_job(folder: Folder) -> None:
    path, _ = folder.spec_of("kept")
    folder.hold(Moment.ENTERED)
    submit = folder.start(CLI, "submit", str(path))
    folder.wait_held()
    refused = folder.command("gc", "--home", "--yes")
    assert refused.returncode == 2
    assert "another `nightshift` command uses" in refused.stderr
    folder.go()
    assert submit.wait(120) == 0, folder.log(0)
    assert "kept" in folder.command("jobs").stdout
    unclosed = folder.command("gc", "--home", "--yes")
    assert (unclosed.returncode, "not closed" in unclosed.stderr) == (2, True)


def test_a_submit_waits_for_a_gc_and_finds_no_ledger(folder: Folder) -> None:
    """The gc has seen that no job is open, and is held before it deletes."""
    path, _ = folder.spec_of("late")
    folder.hold(Moment.DELETING)
    gc = folder.start(CLI, "gc", "--home", "--yes")
    folder.wait_held()
    submit = folder.start(CLI, "submit", str(path))
    with pytest.raises(subprocess.TimeoutExpired):
        submit.wait(5)
    folder.go()
    assert gc.wait(120) == 0, folder.log(0)
    assert submit.wait(120) == 2
    assert "no `nightshift run` has made a ledger in" in folder.log(1)


def test_commands_at_the_same_moment_work(folder: Folder) -> None:
    paths = [folder.spec_of(name)[0] for name in ("one", "two", "three")]
    submits = [folder.start(CLI, "submit", str(path)) for path in paths]
    looks = [folder.start(CLI, "jobs") for _ in range(2)]
    ended = [each.wait(200) for each in (*submits, *looks)]
    assert ended == [0] * 5, "\n".join(map(folder.log, range(5)))
    listed = folder.command("jobs")
    assert all(name in listed.stdout for name in ("one", "two", "three")), listed


def test_a_run_waits_for_a_command_that_keeps_the_server_and_says_so(folder: Folder) -> None:
    (other, _), (path, ids) = folder.spec_of("other"), folder.spec_of("run")
    folder.hold(Moment.ENTERED)
    submit = folder.start(CLI, "submit", str(other))
    folder.wait_held()
    run = folder.start(CLI, "run", str(path))
    said = "waiting for another `nightshift` command in"
    wait_until(lambda: said in folder.log(1), what="a line of the run")
    folder.go()
    assert submit.wait(120) == 0, folder.log(0)
    assert run.wait(200) == 0, folder.log(1)
    assert output_ids(folder.folder / "out-run") == ids


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_wait_ends_once_the_run_beside_it_has_ended(folder: Folder, how: signal.Signals) -> None:
    folder.let(0)
    path, _ = folder.spec_of("left", "rules:slow")
    run = folder.start(CLI, "run", str(path))
    waits = []
    wait_until(lambda: "starting a reaper" in folder.log(0), what="the job")
    for _ in range(2):
        waits.append(folder.start(CLI, "wait", "left"))
    wait_until(lambda: "rows" in folder.log(1) and "rows" in folder.log(2), what="lines of both")
    run.send_signal(how)
    run.wait(120)
    for number, wait in enumerate(waits, 1):
        assert wait.wait(120) == 2, folder.log(number)
        assert "no worker runs job 1: `nightshift run SPEC` works on it" in folder.log(number)
