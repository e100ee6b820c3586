"""One machine as a fleet: its ledger and broker, and the jobs that it works on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console
from tenacity import Retrying, retry_if_exception, wait_fixed

from nightshift.common import permits
from nightshift.common.errors import LedgerUnreachable
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.processes import hardware
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.common.telemetry.steps import Step, StepFile
from nightshift.producer.advice.here import Here, Works
from nightshift.producer.control import replacement
from nightshift.producer.embedded.home import LOOK_ON_SECONDS, HomeLock, home_lock, write_whole
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis
from nightshift.producer.embedded.servers import stop_all
from nightshift.producer.local.fleet import MOST_ENDS, LocalFleet, Servers, running
from nightshift.producer.local.known_job import open_job
from nightshift.producer.local.silence import long_wait_reported, reported
from nightshift.producer.local.worker_settings import for_spec
from nightshift.producer.submit import auto_args
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit
from nightshift.producer.views import progress, watching

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Machine:
    """A ledger and a broker for work on this machine alone, and the folder that they live in.

    The fleet starts with the first job that needs one; jobs with the same engine share it.
    """

    ledger: Ledger
    settings: Settings
    home: Path
    servers: Servers
    started: ExitStack
    console: Console
    steps: StepFile
    fleet: LocalFleet | None = None
    serves: tuple[str, str] | None = None
    """Pool and engine key of the fleet's worker."""
    slots: int | None = None
    """Engines at once; None is the worker's own choice."""

    def submit(self, spec: JobSpec, *, new: bool = False, adopt: bool = False) -> Job:
        """The job of the spec, new or known; a known job is continued, see `known_job`."""
        settings = permits.of_operator(spec, self.settings)
        spec = self.filled_in(spec)
        submitted = submit(self.ledger, spec, settings, Asked(new, adopt))
        self.steps.note(Step.SUBMITTED)
        job = open_job(self.ledger, submitted, spec, self.console)
        if submitted.watch_seconds is not None:
            self.console.print(
                f"it looks for new files every {submitted.watch_seconds} s and does not end by "
                "itself: Ctrl-C stops it here, and the same command continues it; in another terminal "
                f"{watching.how_to_end(job.id)}",
                soft_wrap=True,
                markup=False,
            )
        return job

    def replace(self, spec: JobSpec) -> None:
        """Delete the failed or cancelled job that has the output directory of a spec, see `control.replacement`."""
        settings = permits.of_operator(spec, self.settings)
        replaced = replacement.replace(self.ledger, self.filled_in(spec), settings)
        if replaced is not None:
            self.console.print(
                f"{replaced.label} was deleted; its output directory is free", markup=False
            )

    def filled_in(self, spec: JobSpec) -> JobSpec:
        """The spec with the arguments that auto stands for on this machine, whose worker will run it."""
        return auto_args.filled_in(self.ledger, spec, {hardware.of_this_machine(): 1})

    def work_on(self, job: Job, stop: Callable[[], bool] = lambda: False) -> Job:
        """Works until the job is over or paused, or `stop` says so; raises Permanent when the fleet
        cannot be kept up.
        """
        if job.state.over:
            return job
        is_served = False
        while not is_served:
            fleet = self._serve(job)
            ends = progress.follow(
                self.ledger,
                job.id,
                self.console,
                stop=lambda fleet=fleet: fleet.is_broken() or stop(),  # type: ignore[misc]
                served=self.serves,
                starting=fleet.is_starting,
                here=Here(Works.RUN, job.id),
                patient=True,
            )
            job = ends.job
            fleet.raise_if_broken()
            is_served = ends.at_rest or ends.served_by == self.serves
        self.steps.note(Step.OVER)
        if job.state is JobState.PAUSED:
            # The worker finishes or releases its batches now, so that the summary counts them.
            self.started.close()
            self.fleet = None
        return job

    def _serve(self, job: Job) -> LocalFleet:
        """The fleet whose worker has the engine that the job has now."""
        pool, engine_key = wanted = job.spec.pool, job.engine_key
        Here(Works.RUN, job.id, pool, engine_key).say(self.home)
        if self.fleet is None or self.serves != wanted:
            self.started.close()
            self.serves = wanted
            arguments = ["--pool", pool, "--engine-key", engine_key]
            if self.steps.path is not None:
                arguments += ["--profile", str(self.steps.path)]
            if self.slots is not None:
                arguments += ["--slots", str(self.slots)]
            self.fleet = self.new_fleet(for_spec(job.spec, self.settings), {"worker": arguments})
            self.console.print(
                f"starting a reaper and a worker, whose logs are in {self.settings.home}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
            self.started.enter_context(running(self.fleet, self.console))
        return self.fleet

    def new_fleet(
        self,
        settings: Settings,
        workers: Mapping[str, Sequence[str]],
        most_ends: int | None = MOST_ENDS,
    ) -> LocalFleet:
        """A reaper and workers for the ledger of this machine; see LocalFleet."""
        return LocalFleet(settings, self.home, self.ledger, self.servers, workers, most_ends)


@contextmanager
def machine(
    settings: Settings,
    console: Console,
    *,
    connections: int = 8,
    steps: StepFile = StepFile(None),  # noqa: B008
    slots: int | None = None,
) -> Iterator[Machine]:
    """The machine for the time of one command, which owns the home folder until its servers run.

    Starts a Postgres and a Redis where the environment names none, and ends everything that was
    started. Raises BadInput when another command keeps the home folder.
    """
    home = settings.home.absolute()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    with home_lock(home, say) as lock, ExitStack() as stack:
        Here(Works.RUN).say(home)
        servers: Servers = []
        say(_servers_said(settings))
        stack.callback(_stop, lock, servers, console)
        names = " and ".join(_embedded_names(settings)) or "Postgres"
        with long_wait_reported(f"still waiting for {names}", console):
            settings = _with_servers(settings, home, servers)
            ledger = Ledger(
                settings.database_url or "",
                connections=connections,
                answer_seconds=settings.answer_seconds,
            )
            stack.callback(ledger.close)
            stack.enter_context(reported(ledger, console))
            _prepare_once_reachable(ledger, home, servers)
        lock.share()
        steps.note(Step.SERVERS)
        started = stack.enter_context(ExitStack())
        yield Machine(ledger, settings, home, servers, started, console, steps, slots=slots)


SERVERS: dict[str, type[EmbeddedPostgres | EmbeddedRedis]] = {
    "database_url": EmbeddedPostgres,
    "broker_url": EmbeddedRedis,
}
"""The server that takes the place of each address that the environment does not name."""


def _servers_said(settings: Settings) -> str:
    """Which servers are started, and which are used."""
    starts = _embedded_names(settings)
    uses = [
        f"{kind.name} of NIGHTSHIFT_{name.upper()}"
        for name, kind in SERVERS.items()
        if getattr(settings, name) is not None
    ]
    said = [f"starting {' and '.join(starts)} in {settings.home}"] if starts else []
    return ", ".join([*said, *([f"using the {' and the '.join(uses)}"] if uses else [])])


def _embedded_names(settings: Settings) -> list[str]:
    """Return the names of the servers that this process starts itself."""
    return [kind.name for name, kind in SERVERS.items() if getattr(settings, name) is None]


def _with_servers(settings: Settings, home: Path, servers: Servers) -> Settings:
    """Starts each server that the environment does not name, and adds it to `servers`."""
    found: dict[str, str] = {}
    for name, kind in SERVERS.items():
        if getattr(settings, name) is None:
            server = kind()
            found[name] = server.start(home)
            servers.append(server)
    if "database_url" in found:
        write_whole(home / "database_url", found["database_url"])
    return settings.model_copy(update=found)


def _stop(lock: HomeLock, servers: Servers, console: Console) -> None:
    """Stop the servers and print a line if that takes long: a frozen one is killed after 20 s."""
    with long_wait_reported("still stopping the servers", console):
        stop_all(lock, servers, LOOK_ON_SECONDS)


RETRY_SECONDS = 1.0
"""Pause before another connection to a Postgres that did not answer."""


def _prepare_once_reachable(ledger: Ledger, home: Path, servers: Servers) -> None:
    """Call `_prepare` again while a Postgres that this process has started runs and does not answer.

    Every other error is raised at once, such as a full disk that Postgres reports.
    """

    def may_answer(error: BaseException) -> bool:
        return isinstance(error, LedgerUnreachable) and any(
            isinstance(server, EmbeddedPostgres) and server.runs() for server in servers
        )

    attempts = Retrying(
        retry=retry_if_exception(may_answer), wait=wait_fixed(RETRY_SECONDS), reraise=True
    )
    attempts(_prepare, ledger, home)


def _prepare(ledger: Ledger, home: Path) -> None:
    """Migrates, and releases the leases of workers that an earlier `run` left behind."""
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
