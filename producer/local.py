"""`nightshift run`: the whole fleet on one machine, and the same command again after any crash."""

import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console

from nightshift.common.errors import BadInput, Permanent, Retryable
from nightshift.common.ledger import Ledger, jobs, schema, spending, workers
from nightshift.common.ledger.jobs import Job
from nightshift.common.processes.embedded import EmbeddedPostgres, EmbeddedRedis, home_lock
from nightshift.common.processes.group import ProcessGroup
from nightshift.common.settings import Settings, child_environment, python_path
from nightshift.common.spec import FunctionEngineSpec, JobSpec
from nightshift.common.states import JobState
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.estimate import Estimate, estimate
from nightshift.producer.estimate.pilot import Pilot, Tried
from nightshift.producer.results import openai_batch_results
from nightshift.producer.submit.submit import Submitted, identified, is_known, submit
from nightshift.producer.views import progress

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 40.0
"""Beyond the drain, time for the worker to let go of its engine before its group is ended."""

MOST_RESTARTS = 5
"""Times that the reaper or the worker is started again before `run` gives up."""


def run(
    spec: JobSpec,
    settings: Settings,
    *,
    new: bool,
    console: Console,
    first: Pilot | None = None,
    results: str | None = None,
) -> int:
    """Submits or continues the job and works until it is over; returns the exit code.

    0 every row has an answer, 1 finished with row errors, 3 failed, paused, cancelled, or stopped
    after the pilot that came `first`. `results` is where the lines of an OpenAI batch go. Raises
    BadInput when the spec, the input, `results` or the home folder cannot be used.
    """
    if results is not None:
        openai_batch_results.refuse_strangers(*identified(spec, settings), results)
    with machine(settings) as here:
        # Whoever said yes once is not asked again after a crash.
        if first is not None and not is_known(here.ledger, spec):
            tried = here.try_out(spec, first.rows, console)
            code = pilot.verdict(here.ledger, spec, settings, tried, console, first)
            if code is not None:
                return code
        job = here.opened(spec, new=new, console=console)
        if results is not None:
            openai_batch_results.refuse_strangers(job.spec, job.identity, results)
        job = here.worked(job, console)
        code = progress.report_end(here.ledger, job, console)
        if results is not None:
            openai_batch_results.report(here.ledger, job, results, console)
        return code


def try_out(
    spec: JobSpec,
    settings: Settings,
    rows: int,
    workers: int | None,
    console: Console,
    *,
    fleet: Ledger | None = None,
) -> Estimate | None:
    """Runs a pilot and estimates by it; None when it did not come to its end.

    Where the pool lives in the ledger of a `fleet`, its workers run it: what another machine is
    capable of says little. Else this machine does.
    """
    if fleet is not None and _lives(fleet, spec.pool):
        begun = pilot.begin(fleet, spec, settings, rows)
        job = progress.follow(fleet, _opened(fleet, begun.submitted, spec, console).id, console)
        if not pilot.show(fleet, Tried(job, begun.bad), console):
            return None
        return estimate(spec, settings, fleet, workers=workers, pilot=job.id)
    with machine(settings) as here:
        tried = here.try_out(spec, rows, console)
        if not pilot.show(here.ledger, tried, console):
            return None
        return estimate(spec, settings, here.ledger, workers=workers, pilot=tried.job.id)


def _lives(ledger: Ledger, pool: str) -> bool:
    with ledger.transaction() as connection:
        return spending.slots(connection, pool)[0] > 0


class Machine:
    """A ledger and a broker for work on this machine alone, and the folder that they live in.

    A fleet starts with the first job that needs it, and stays for the next ones of its engine.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        home: Path,
        servers: "list[EmbeddedPostgres | EmbeddedRedis]",
        started: ExitStack,
    ) -> None:
        self.ledger = ledger
        self._settings = settings
        self._home = home
        self._servers = servers
        self._started = started
        self._fleet: Fleet | None = None

    def carry_out(self, spec: JobSpec, *, new: bool, console: Console) -> Job:
        """Submits or continues the job, and works until it is over or paused."""
        return self.worked(self.opened(spec, new=new, console=console), console)

    def opened(self, spec: JobSpec, *, new: bool, console: Console) -> Job:
        """The job of a spec, new or found, resumed where it was paused."""
        submitted = submit(self.ledger, spec, self._settings, new=new)
        return _opened(self.ledger, submitted, spec, console)

    def try_out(self, spec: JobSpec, rows: int, console: Console) -> Tried:
        """Carries out a pilot of so many rows."""
        begun = pilot.begin(self.ledger, spec, self._settings, rows)
        job = self.worked(_opened(self.ledger, begun.submitted, spec, console), console)
        return Tried(job, begun.bad)

    def worked(self, job: Job, console: Console) -> Job:
        """The job as it is once it is over or paused; Permanent when the fleet broke down."""
        if job.state.over:
            return job
        fleet = self._fleet_for(job.spec, console)
        job = progress.follow(self.ledger, job.id, console, stop=fleet.is_broken)
        fleet.raise_if_broken()
        if job.state is JobState.PAUSED:
            # What is under way is finished or given back, and counts, before anything is told.
            self._started.close()
            self._fleet = None
        return job

    def _fleet_for(self, spec: JobSpec, console: Console) -> "Fleet":
        if self._fleet is None or not self._fleet.serves(spec):
            self._started.close()
            self._fleet = Fleet(spec, self._settings, self._home, self.ledger, self._servers)
            self._started.enter_context(_sigterm_like_ctrl_c())
            self._started.enter_context(_running(self._fleet, console))
        return self._fleet


@contextmanager
def machine(settings: Settings) -> Iterator[Machine]:
    """The servers that the environment does not name, started for the time of one command, under
    the lock of the home folder; BadInput when that is in use. Ends at last whatever was started.
    """
    home = settings.home.absolute()
    with home_lock(home), ExitStack() as stack:
        servers: list[EmbeddedPostgres | EmbeddedRedis] = []
        settings = _with_servers(settings, home, stack, servers)
        ledger = Ledger(settings.database_url or "", answer_seconds=settings.answer_seconds)
        stack.callback(ledger.close)
        _prepare(ledger, home)
        yield Machine(ledger, settings, home, servers, stack.enter_context(ExitStack()))


def _with_servers(
    settings: Settings,
    home: Path,
    stack: ExitStack,
    servers: list[EmbeddedPostgres | EmbeddedRedis],
) -> Settings:
    """Starts what the environment names no server for, and adds it to `servers`."""
    found: dict[str, str] = {}
    if settings.database_url is None:
        postgres = EmbeddedPostgres()
        found["database_url"] = postgres.start(home)
        stack.callback(postgres.stop)
        servers.append(postgres)
        _keep_private(home / "database_url", found["database_url"])
    if settings.broker_url is None:
        redis = EmbeddedRedis()
        found["broker_url"] = redis.start(home)
        stack.callback(redis.stop)
        servers.append(redis)
    return settings.model_copy(update=found)


def _prepare(ledger: Ledger, home: Path) -> None:
    """Migrates, and frees at once the leases of workers that an earlier boot left behind."""
    schema.migrate(ledger)
    schema.check(ledger)
    record = home / "supervisors"
    if not record.exists():
        return
    for identity in record.read_text(encoding="utf-8").split():
        with ledger.transaction() as connection:
            freed = workers.end_supervisor(connection, identity)
        log.info("leases_freed", supervisor=identity, batches=freed)
    record.unlink()


def _opened(ledger: Ledger, submitted: Submitted, spec: JobSpec, console: Console) -> Job:
    """Says which job this is, and resumes it if it is paused, with the budget of the spec as it
    is now.
    """
    if submitted.is_new:
        console.print(
            f"job {submitted.job_id}: {submitted.rows:,} rows in {submitted.batches:,} batches",
            highlight=False,
        )
    elif not submitted.state.over:
        console.print(f"job {submitted.job_id} goes on where it stood", highlight=False)
    with ledger.transaction() as connection:
        if submitted.state is JobState.PAUSED:
            if spec.limits.budget is not None:
                spending.set_budget(connection, submitted.job_id, spec.limits.budget)
            spending.refuse_spent(connection, submitted.job_id)
            jobs.resume(connection, submitted.job_id)
        job = jobs.get(connection, submitted.job_id)
    assert job is not None
    return job


@contextmanager
def _running(fleet: "Fleet", console: Console) -> Iterator[None]:
    try:
        fleet.start()
        yield
    except KeyboardInterrupt:
        console.print(
            "stopping: rows under way are finished or given back; the same command goes on",
            highlight=False,
        )
        raise
    finally:
        fleet.stop()


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """What systemd, docker and slurm send drains as well."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(slots=True)
class Member:
    """A process of the fleet, and how often it was started."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    group: ProcessGroup | None = None
    starts: int = 0


class Fleet:
    """A reaper and a worker beside us, started again when they end by themselves."""

    def __init__(
        self,
        spec: JobSpec,
        settings: Settings,
        home: Path,
        ledger: Ledger,
        servers: Sequence[EmbeddedPostgres | EmbeddedRedis],
    ) -> None:
        self._serves = (spec.pool, spec.engine_key)
        self._home = home
        self._ledger = ledger
        self._servers = servers
        self._supervisor = f"run-{secrets.token_hex(6)}"
        self._drain_seconds = settings.drain_seconds
        settings = _for_worker(spec, settings)
        self._broken: str | None = None
        self._lock = threading.Lock()
        self._members = [
            Member(
                "reaper",
                [sys.executable, "-P", "-m", "nightshift.producer.cli", "reaper"],
                child_environment(for_reaper(settings)),
            ),
            Member(
                "worker",
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "nightshift.worker.cli",
                    "--pool",
                    spec.pool,
                    "--engine-key",
                    spec.engine_key,
                    "--supervisor-id",
                    self._supervisor,
                ],
                child_environment(settings),
            ),
        ]

    def start(self) -> None:
        """Starts both; the worker's name is on disk first, for the boot after a crash."""
        _keep_private(self._home / "supervisors", self._supervisor)
        for member in self._members:
            self._start(member)

    def serves(self, spec: JobSpec) -> bool:
        """Whether its worker runs jobs of this pool and engine."""
        return self._serves == (spec.pool, spec.engine_key)

    def is_broken(self) -> bool:
        """Starts what ended again; True once that happened too often to go on."""
        for server in self._servers:
            if (code := server.poll()) is not None:
                name = type(server).__name__.removeprefix("Embedded")
                self._broken = (
                    f"{name} ended with exit code {code}, see the logs in {self._home}; the same "
                    "command goes on where it stood"
                )
                return True
        for member in self._members:
            if member.group is None or (code := member.group.poll()) is None:
                continue
            member.group.kill()
            if member.starts > MOST_RESTARTS:
                self._broken = (
                    f"the {member.name} ended {member.starts} times, last with exit code {code}: "
                    f"see {self._log(member)}"
                )
                return True
            log.warning("restarted", process=member.name, code=code)
            if member.name == "worker":
                self._free_leases()
            self._start(member)
        return False

    def _free_leases(self) -> None:
        """What a dead worker held; a reaper would take it back later, and charge it."""
        with suppress(Retryable), self._ledger.transaction() as connection:
            workers.end_supervisor(connection, self._supervisor)

    def raise_if_broken(self) -> None:
        """Permanent with the reason when the fleet could not be kept alive."""
        if self._broken is not None:
            raise Permanent(self._broken)

    def stop(self) -> None:
        """Drains the worker, ends the reaper, and every process of theirs."""
        for member in reversed(self._members):
            if member.group is not None:
                member.group.stop(2 * self._drain_seconds + LEAVE_SECONDS)

    def _start(self, member: Member) -> None:
        member.starts += 1
        with self._log(member).open("ab") as output:
            member.group = ProcessGroup.start(
                member.argv,
                env=member.environment,
                stdout=output,
                stderr=output,
                record=self._home / "processes",
            )

    def _log(self, member: Member) -> Path:
        return self._home / f"{member.name}.log"


def for_reaper(settings: Settings) -> Settings:
    """The worker serves its metrics on the port that is set, the reaper on the next one."""
    port = settings.metrics_port
    if not port:
        return settings
    if port == 65535:
        raise BadInput("NIGHTSHIFT_METRICS_PORT is the last one, and the reaper takes the next")
    return settings.model_copy(update={"metrics_port": port + 1})


def _for_worker(spec: JobSpec, settings: Settings) -> Settings:
    """The spec's own module may be loaded from the working directory and PYTHONPATH.

    No run_dir: a folder has one worker and one reaper, and those are the fleet's.
    """
    settings = settings.model_copy(update={"run_dir": None})
    if not isinstance(spec.engine, FunctionEngineSpec):
        return settings
    folders = (str(Path.cwd()), *python_path(), *settings.callable_paths)
    return settings.model_copy(
        update={
            "allowed_modules": (*settings.allowed_modules, spec.engine.module),
            "callable_paths": tuple(dict.fromkeys(folders)),
        }
    )


def _keep_private(path: Path, text: str) -> None:
    """A small file that only we can read; it may hold a password."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
