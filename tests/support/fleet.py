"""A fleet of real processes for a test: what it starts, it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from nightshift.common.errors import LeaseLost
from nightshift.common.ledger.batches import commits
from nightshift.common.ledger.batches.records import Lease, Part
from nightshift.common.ledger.connection import Connection
from tests.support import homes

RULES = """
import fcntl
import os
import time
from pathlib import Path

HERE = Path(__file__).parent

def shout(rows):
    return [{"loud": row["text"].upper()} for row in rows]

def is_let(rows):
    # True as soon as the test lets these rows pass, False where it lets rows pass as they come.
    while (HERE / "limit").exists():
        with (HERE / "passed").open("ab") as passed:
            fcntl.flock(passed, fcntl.LOCK_EX)
            if passed.seek(0, os.SEEK_END) < int((HERE / "limit").read_text()):
                passed.write(b"." * len(rows))
                return True
        time.sleep(0.01)
    return False

def slow(rows):
    # Never so quick that the engine makes the calls of several batches together.
    time.sleep((0.0002 if is_let(rows) else 0.01) * len(rows))
    with (HERE / "computed").open("a") as computed:
        computed.write("".join(row["id"] + chr(10) for row in rows))
    return shout(rows)

def late(rows):
    if any(int(row["id"].rpartition("-")[2]) < 30 for row in rows):
        raise ValueError("too early")
    return shout(rows)

def picky(rows):
    if any(row["id"].endswith("7") for row in rows):
        raise ValueError("a seven")
    return shout(rows)
"""
"""What jobs of a fleet call. `slow` takes 10 ms a row, or as long as its test wants (`Fleet.let`); the
rows that it has computed stand in the file `computed`.
"""

EVERY_ROW = 10**12

FAST = {
    "NIGHTSHIFT_LEASE_SECONDS": "2",
    "NIGHTSHIFT_HEARTBEAT_SECONDS": "0.5",
    "NIGHTSHIFT_POLL_SECONDS": "0.5",
    "NIGHTSHIFT_DRAIN_SECONDS": "5",
    "NIGHTSHIFT_LOAD_BACKOFF_SECONDS": "0.2",
}
"""Short leases, so that a test waits for seconds. The reaper's interval is the default: shorter ones cost more CPU time
than they save.
"""


LOOK_SECONDS = 0.02
LONGEST_LOOK_SECONDS = 0.2
"""Between two looks at what a test waits for: a look takes time from the fleet that it waits for."""


def wait_until(condition: Callable[[], Any], seconds: float = 120, what: str = "it") -> Any:
    """Polls until the condition is true, ever more slowly; fails the test with `what` when the time
    is over. A wait that ends costs nothing: the time is for a machine with much else to do.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"{what} did not happen within {seconds} s"
        time.sleep(min(LONGEST_LOOK_SECONDS, max(LOOK_SECONDS, 0.1 * waited)))
    return found


def write_rows(folder: Path, files: Sequence[tuple[str, int]]) -> list[str]:
    """Writes input files of so many rows each and returns every id in dataset order."""
    folder.mkdir(parents=True, exist_ok=True)
    ids: list[str] = []
    for name, count in files:
        mine = [f"{Path(name).stem}-{number}" for number in range(count)]
        ids += mine
        rows = [{"id": each, "text": f"say {each}"} for each in mine]
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), folder / name, row_group_size=37)
        else:
            text = "\n".join(json.dumps(row) for row in rows)
            (folder / name).write_text(text + "\n")
    return ids


def function_spec(name: str, source: Path, output: Path, /, **sections: Any) -> dict[str, Any]:
    """A spec of the function engine over `source`; sections are laid over it."""
    return {
        "name": name,
        "input": {"uri": str(source), "id": "id"},
        "task": {"kind": "function"},
        "engine": {"backend": "function", "callable": "rules:shout"},
        "output": {"uri": str(output)},
        **sections,
    }


def output_ids(output: Path) -> list[str]:
    """The ids of a finished directory in row order, as any Arrow reader sees it."""
    table = ds.dataset(output, format="parquet").to_table(columns=["row_index", "id"])
    return [str(each) for each in table.sort_by("row_index").column("id").to_pylist()]


class Fleet:
    """Processes of one test, in one working folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.is_furnished = True
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "rules.py").exists():
            (folder / "rules.py").write_text(RULES)
        kept = {name: value for name, value in os.environ.items() if "NIGHTSHIFT" not in name}
        self.environment = {**kept, **FAST, "COLUMNS": "200", **environment}

    def spec(self, data: dict[str, Any]) -> Path:
        """Writes a spec (JSON is YAML)."""
        path = self.folder / f"{data['name']}.yaml"
        path.write_text(json.dumps(data))
        return path

    def _furnish(self, *arguments: str) -> None:
        """A first `run` finds its Postgres made and migrated, unless the test wants to see that."""
        has_none = "NIGHTSHIFT_DATABASE_URL" not in self.environment
        if self.is_furnished and has_none and arguments[:1] == ("run",):
            homes.furnish(self.folder / ".nightshift")

    def let(self, rows: int = EVERY_ROW) -> None:
        """The function `slow` of this folder answers so many rows more, quickly, and then waits for
        the next word: what happens meanwhile meets a job that cannot end. A call passes whole.
        """
        limit, passed = self.folder / "limit", self.folder / "passed"
        told = int(limit.read_text()) if limit.exists() else 0
        begun = passed.stat().st_size if passed.exists() else 0
        new = self.folder / "new-limit"
        new.write_text(str(max(begun, told if told < EVERY_ROW else 0) + rows))
        new.rename(limit)

    def command(self, *arguments: str, seconds: float = 200) -> subprocess.CompletedProcess[str]:
        """Runs `nightshift …` to its end."""
        self._furnish(*arguments)
        return subprocess.run(
            [sys.executable, "-m", "nightshift.producer.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts `python -m module …` in the background, its output in a log file."""
        self._furnish(*arguments)
        number = len(self.processes)
        with (self.folder / f"{module}.{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def reaper(self) -> subprocess.Popen[bytes]:
        """A reaper in the background."""
        return self.start("nightshift.producer.cli", "reaper")

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A supervisor in the background."""
        return self.start("nightshift.worker.cli", *arguments)

    def status(self, job: str | int) -> dict[str, Any]:
        """What `nightshift status --json` says."""
        done = self.command("status", str(job), "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def end(self) -> None:
        """Ends everything that this test started, and what those started."""
        for process in self.processes:
            kill_tree(process)


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and its descendants as they are now."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_alive(member: psutil.Process) -> bool:
    """Neither gone nor a zombie that nobody has reaped yet."""
    try:
        return bool(member.is_running() and member.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def runs(process: subprocess.Popen[bytes], marker: str) -> bool:
    """True when a command line in the tree holds the marker."""
    for member in tree(process):
        try:
            if marker in " ".join(member.cmdline()):
                return True
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return False


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and all of its descendants at once."""
    members = tree(process)
    for member in members:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    # Those whose parent is gone may be zombies for seconds, until somebody reaps them.
    wait_until(lambda: not any(map(is_alive, members)), what="the end of what was killed")
    process.wait(60)


def logs(folder: Path) -> str:
    """Every log of a test's folder, for the message of an assertion."""
    return "\n".join(
        f"== {path}\n{path.read_text(errors='replace')[-4000:]}"
        for path in sorted(folder.rglob("*.log"))
        if "postgres" not in path.name
    )


def commit_one(connection: Connection, lease: Lease, part: Part) -> None:
    """A group of one; LeaseLost when its fence does not match."""
    if not commits.commit(connection, [(lease, part)]):
        raise LeaseLost(f"batch {lease.batch_id} attempt {lease.attempt} belongs to somebody else")
