"""A whole fleet on this machine for a benchmark: servers, reaper, workers, each a real process."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from nightshift.common.ledger import Ledger, schema
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import Settings, child_environment, load_settings
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis

T = TypeVar("T")

LEAVE_SECONDS = 60.0
"""Time that a worker gets to close its engine before its group is ended."""


@dataclass
class Fleet:
    """Embedded servers in a temporary folder, and the processes that are started beside them."""

    folder: Path
    settings: Settings
    ledger: Ledger
    pids: dict[str, int]
    groups: dict[str, ProcessGroup] = field(default_factory=dict)

    def reaper(self, name: str = "reaper") -> None:
        """Starts a `nightshift reaper`."""
        self.program(name, "nightshift.producer.cli", "reaper")

    def worker(self, *arguments: str, cores: set[int] | None = None, **variables: str) -> None:
        """Starts a `nightshift-worker`, kept to `cores` if they are given."""
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or ours)  # what is started inherits it
        try:
            argv = [sys.executable, "-m", "nightshift.worker.cli", *arguments]
            self._start("worker", argv, **variables)
        finally:
            os.sched_setaffinity(0, ours)

    def program(self, name: str, module: str, *arguments: str) -> None:
        """Starts `python -m module …`."""
        self._start(name, [sys.executable, "-m", module, *arguments])

    def stop(self, name: str) -> None:
        """Ends a process as an operator would, and every process of its group."""
        self.groups.pop(name).stop(LEAVE_SECONDS)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds so far of each component, user and system; a worker's children by
        themselves.
        """
        found = {name: sum(tree_seconds(pid)) for name, pid in self.pids.items()}
        for name, group in self.groups.items():
            own, below = tree_seconds(group.pid)
            found |= {"supervisor": own, "child": below} if name == "worker" else {name: own}
        return found

    def wait(
        self, done: Callable[[], T], seconds: float, pause: float = 0.2, log: str = "worker"
    ) -> T:
        """What `done()` returns once it is true; TimeoutError with the last lines of a process."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := done():
                return found
            time.sleep(pause)
        raise TimeoutError(f"not done within {seconds} s: {self.log(log)}")

    def log(self, name: str) -> str:
        """The end of a process's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _start(self, name: str, argv: Sequence[str], **variables: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self.groups[name] = ProcessGroup.start(
                list(argv),
                env=child_environment(self.settings, **variables),
                stdout=output,
                stderr=output,
                record=self.folder / "processes",
            )


@contextmanager
def fleet(parent: Path, **settings: object) -> Iterator[Fleet]:
    """A fleet without workers yet, in a folder of its own under `parent`; whatever was started is
    ended, the folder stays. `settings` are those of `common.settings`; its workers may load the
    callables that stand beside this file.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(dir=parent))
        postgres, redis = EmbeddedPostgres(), EmbeddedRedis()
        stack.callback(postgres.stop)
        database_url = postgres.start(folder)
        stack.callback(redis.stop)
        broker_url = redis.start(folder)
        known = load_settings(
            database_url=database_url,
            broker_url=broker_url,
            allowed_modules=("echo", "doze"),
            callable_paths=(str(Path(__file__).parent),),
            **settings,
        )
        ledger = Ledger(database_url)
        stack.callback(ledger.close)
        schema.migrate(ledger)
        made = Fleet(folder, known, ledger, servers())
        stack.callback(_stop_all, made)
        yield made


def servers() -> dict[str, int]:
    """Process ids of the embedded servers that this process started, by name."""
    names = {"postgres": "Postgres", "redis-server": "Redis"}
    return {
        names[child.name()]: child.pid
        for child in psutil.Process().children()
        if child.name() in names
    }


def _stop_all(made: Fleet) -> None:
    for name in list(made.groups):
        made.stop(name)


def tree_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of all below it."""
    try:
        root = psutil.Process(pid)
        below = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return 0.0, 0.0
    return _seconds(root), sum(_seconds(member) for member in below)


def _seconds(process: psutil.Process) -> float:
    """With the children that it has waited for: Postgres's backends come and go."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
