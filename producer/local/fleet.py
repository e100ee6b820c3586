"""The reaper and the workers of one machine, as processes beside the command that runs a job or serves."""

import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from rich.console import Console

from nightshift.common.errors import BadInput, Permanent, Retryable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import workers
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import Settings, child_environment
from nightshift.common.system_errors import told
from nightshift.common.text import counted
from nightshift.producer.embedded.home import write_whole
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis
from nightshift.producer.local.restarts import Restarts

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 40.0
"""Beyond the drain, time for the worker to stop its engine before its group is ended."""

Servers = list[EmbeddedPostgres | EmbeddedRedis]

START_SECONDS = 600.0
"""Time in which the processes of a fleet have shown themselves in the ledger, if nothing is wrong with them."""

MOST_ENDS = 6
"""Ends in a row of a process or a server with which `run` gives up."""


@dataclass(slots=True)
class FleetProcess:
    """A process of the fleet, `group` while it runs, and how it ended before."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    supervisor: str | None = None
    group: ProcessGroup | None = None
    restarts: Restarts = field(default_factory=Restarts)

    @property
    def log(self) -> str:
        """The name of its log file in the home folder."""
        return f"{self.name}.log"


class FleetServer:
    """A Postgres or Redis of the fleet, and how it ended before. It starts in a thread, since it may have
    much to recover and everything else goes on.
    """

    def __init__(self, server: EmbeddedPostgres | EmbeddedRedis) -> None:
        self.name, self.log = server.name, f"{server.program}.log"
        self.restarts = Restarts()
        self._server = server
        self._threads = ThreadPoolExecutor(1)
        self._start: Future[None] | None = None
        if server.runs():
            self.restarts.began(time.monotonic())

    def look(self, home: Path) -> tuple[str, dict[str, str]] | None:
        """Begins to start the server again once it is due. How it ended, and what else is known, for each
        end and each start that failed.
        """
        if self._start is not None:
            if not self._start.done():
                return None
            error, self._start = self._start.exception(), None
            if error is not None:  # whatever it is may pass
                return "before it answered", {"error": f"{type(error).__name__}: {error}"}
            self.restarts.began(time.monotonic())
        if self.restarts.began_at is not None:
            code = self._server.poll()
            return None if self._server.runs() else (f"with exit code {code}", {})
        if self.restarts.is_due(time.monotonic()):
            self._start = self._threads.submit(self._server.start_again, home)
        return None

    def close(self) -> None:
        """Waits for the end of a start that is under way."""
        self._threads.shutdown(cancel_futures=True)


class LocalFleet:
    """A reaper and a worker for each of some pools, started again when they end by themselves, like the
    `servers` of the machine.

    `settings` are those of `for_worker`; `workers` are arguments of `nightshift-worker`, by a name for
    the log file. After `most_ends` ends in a row of one of them the fleet is broken; without a number
    that one is started for ever, at last once in LONGEST_PAUSE_SECONDS.
    """

    def __init__(
        self,
        settings: Settings,
        home: Path,
        ledger: Ledger,
        servers: Servers,
        workers: Mapping[str, Sequence[str]],
        most_ends: int | None = MOST_ENDS,
    ) -> None:
        self._home = home
        self._most_ends = most_ends
        self._ledger = ledger
        self._servers = [FleetServer(server) for server in servers]
        self._drain_seconds = settings.drain_seconds
        self._broken: str | None = None
        python = [sys.executable, "-P", "-m"]
        reaper = [*python, "nightshift.producer.cli", "reaper"]
        self._processes = [FleetProcess("reaper", reaper, child_environment(for_reaper(settings)))]
        for name, arguments in workers.items():
            supervisor = f"run-{secrets.token_hex(6)}"
            worker = [*python, "nightshift.worker.cli", *arguments, "--supervisor-id", supervisor]
            environment = child_environment(settings)
            self._processes.append(FleetProcess(name, worker, environment, supervisor))

    def start(self) -> None:
        """Starts all; the supervisor ids are on disk first, so that a `run` after a crash finds them."""
        (self._home / "ending").unlink(missing_ok=True)
        supervisors = [each.supervisor for each in self._processes if each.supervisor]
        write_whole(self._home / "supervisors", "\n".join(supervisors))
        for process in self._processes:
            self._start(process)

    def is_starting(self) -> bool:
        """Whether every process runs for the first time, and not for long."""
        began = [each.restarts.began_at for each in self._processes if not each.restarts.ends]
        since = time.monotonic() - START_SECONDS
        return len(began) == len(self._processes) and all(at and at > since for at in began)

    def is_broken(self) -> bool:
        """Starts what ended by itself again, once it is due; True when one of them ended too often in a
        row.
        """
        for server in self._servers:
            if (end := server.look(self._home)) is not None:
                self._note_end(server, end[0], **end[1])
            if self._ends_too_often(server):
                return True
        for process in self._processes:
            self._see_end(process)
            if self._ends_too_often(process):
                return True
            if process.group is None and process.restarts.is_due(time.monotonic()):
                self._start(process)
        return False

    def _ends_too_often(self, one: FleetProcess | FleetServer) -> bool:
        if self._most_ends is None or one.restarts.ends < self._most_ends:
            return False
        self._broken = (
            f"the {one.name} ended {counted(one.restarts.ends, 'time')} in a row, last {one.restarts.why}: "
            f"see {self._home / one.log}"
        )
        return True

    def troubles(self) -> list[str]:
        """What is wrong with each process, in one sentence without a path; none while all live."""
        now = time.monotonic()
        all_of_them: list[FleetServer | FleetProcess] = [*self._servers, *self._processes]
        found = (each.restarts.trouble(each.name, now) for each in all_of_them)
        return [each for each in found if each is not None]

    def _see_end(self, process: FleetProcess) -> None:
        if process.group is None or (code := process.group.poll()) is None:
            return
        process.group.kill()
        process.group = None
        self._note_end(process, f"with exit code {code}")
        if process.supervisor is not None:
            self._release_leases(process.supervisor)

    def _note_end(self, one: FleetProcess | FleetServer, why: str, **more: str) -> None:
        now = time.monotonic()
        one.restarts.ended(now, why)
        log.warning(
            "process_ended",
            process=one.name,
            why=why,
            in_a_row=one.restarts.ends,
            again_in_seconds=round(max(0.0, one.restarts.due_at - now)),
            log=str(self._home / one.log),
            **more,
        )

    def _release_leases(self, supervisor: str) -> None:
        """Releases the batches of a dead worker; a reaper would do it later, and count losses."""
        with suppress(Retryable), self._ledger.transaction() as connection:
            workers.end_supervisor(connection, supervisor)

    def raise_if_broken(self) -> None:
        """Raises Permanent with the reason when the fleet could not be kept up."""
        if self._broken is not None:
            raise Permanent(self._broken)

    def stop(self) -> None:
        """Drains the workers, ends the reaper, and all processes that they started. Whoever wants the home
        folder waits for that. A worker that could not give its batches back in time leaves none leased.
        """
        with suppress(OSError):  # the workers are drained on a full disk, too
            (self._home / "ending").touch()
        for process in self._processes:
            if process.group is not None and process.supervisor is not None:
                process.group.terminate()
        for process in reversed(self._processes):
            if process.group is not None:
                process.group.stop(2 * self._drain_seconds + LEAVE_SECONDS)
            if process.supervisor is not None:
                self._release_leases(process.supervisor)
        for server in self._servers:
            server.close()

    def _start(self, process: FleetProcess) -> None:
        process.restarts.began(time.monotonic())
        try:
            with (self._home / process.log).open("ab") as output:
                process.group = ProcessGroup.start(
                    process.argv,
                    env=process.environment,
                    stdout=output,
                    stderr=output,
                    record=self._home / "processes",
                )
        except (Permanent, OSError) as error:  # no process or no room: both may pass
            self._note_end(process, "before it ran", error=told(error))


def for_reaper(settings: Settings) -> Settings:
    """Settings of the reaper: the worker has the metrics port that is set, the reaper the next one."""
    port = settings.metrics_port
    if not port:
        return settings
    if port == 65535:
        raise BadInput("NIGHTSHIFT_METRICS_PORT is the last one, and the reaper takes the next")
    return settings.model_copy(update={"metrics_port": port + 1})


@contextmanager
def running(fleet: LocalFleet, console: Console) -> Iterator[None]:
    """The fleet at work; SIGTERM and Ctrl-C drain it."""
    with _sigterm_like_ctrl_c():
        try:
            fleet.start()
            yield
        except KeyboardInterrupt:
            console.print(
                "stopping: rows under way are finished or released; the same command continues the "
                "work later"
            )
            raise
        finally:
            fleet.stop()


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM, which systemd, docker and slurm send, a KeyboardInterrupt.

    A program that calls us keeps a handler of its own; and only the main thread may set one.
    """
    if (
        callable(signal.getsignal(signal.SIGTERM))
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
