"""Where pilots run: on the workers of the spec's pool where some live, else on this machine."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from rich.console import Console

from nightshift.common import permits
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.processes import hardware
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.telemetry.steps import Step
from nightshift.producer.connect import has_ledger, open_ledger
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.estimate import Estimate, estimate
from nightshift.producer.estimate.pilot import FinishedPilot, Unreadable
from nightshift.producer.local.known_job import open_job
from nightshift.producer.local.machine import Machine, machine
from nightshift.producer.submit.intake import Asked
from nightshift.producer.views import progress


def before_job(
    here: Machine,
    spec: JobSpec,
    settings: Settings,
    console: Console,
    *,
    rows: int,
    adopt: bool,
    agreed: bool,
) -> bool:
    """Runs a pilot of so many rows on this machine; whether the job itself runs then. Somebody is asked
    unless that is `agreed`.
    """
    job, unreadable = start_pilot(here, spec, rows, adopt=adopt)
    finished = FinishedPilot(here.work_on(job), unreadable)
    made = pilot.shown_estimate(here.ledger, spec, settings, finished, console)
    return made is not None and pilot.goes_on(
        here.ledger, spec, finished, made, console, agreed=agreed
    )


def start_pilot(
    here: Machine,
    spec: JobSpec,
    rows: int,
    *,
    adopt: bool = False,
    batches: int | None = None,
) -> tuple[Job, Unreadable]:
    """The job of a pilot of `rows` rows on this machine, new or known, and the rows that it cannot read."""
    settings = permits.of_operator(spec, here.settings)
    spec = here.filled_in(spec)
    submitted, unreadable = pilot.submit_pilot(
        here.ledger, spec, settings, rows, asked=Asked(adopt=adopt), batches=batches
    )
    here.steps.note(Step.SUBMITTED)
    return open_job(here.ledger, submitted, spec, here.console), unreadable


def run_estimate(
    spec: JobSpec,
    settings: Settings,
    console: Console,
    *,
    pilot_rows: int | None,
    workers: int | None,
) -> Estimate | None:
    """Estimates by what the ledger knows, or by a pilot of `pilot_rows` rows, which runs now. None when the pilot
    did not come to its end.
    """
    if pilot_rows is None:
        known = open_ledger(settings) if has_ledger(settings) else nullcontext((None, False))
        with known as (ledger, _):
            return estimate(spec, settings, ledger, workers=workers)
    with pilots(spec, settings, console) as place:
        finished = place.run(spec, pilot_rows)
        # The pilot has run, so its engine is allowed: nothing is left to be checked.
        settings = settings.model_copy(update={"allowed_engine_args": None})
        return pilot.shown_estimate(
            place.ledger, spec, settings, finished, console, workers=workers
        )


@dataclass(frozen=True, slots=True)
class PilotPlace:
    """Where pilots run: their ledger, how many slots have which hardware, and whether they are those of
    this machine alone.

    `start` submits a pilot of so many rows in so many batches (None: the usual number), and `work_on` returns its job when it is
    over or paused, or when the function says stop.
    """

    ledger: Ledger
    slots: Mapping[str, int]
    is_here: bool
    start: Callable[[JobSpec, int, int | None], tuple[Job, Unreadable]]
    work_on: Callable[[Job, Callable[[], bool]], Job]

    def run(self, spec: JobSpec, rows: int) -> FinishedPilot:
        """Runs a pilot of so many rows to its end."""
        job, unreadable = self.start(spec, rows, None)
        return FinishedPilot(self.work_on(job, lambda: False), unreadable)


@contextmanager
def pilots(spec: JobSpec, settings: Settings, console: Console) -> Iterator[PilotPlace]:
    """The place for pilots of a spec.

    Where slots of the pool live in the ledger that the environment names, they run the pilots: the
    speed of another machine would say little. Else this machine runs them.
    """
    if settings.database_url is not None:
        with open_ledger(settings) as (ledger, _):
            with ledger.transaction() as connection:
                is_served = tunings.is_served(connection, spec.pool, spec.engine_key)
                slots = tunings.hardware(connection, spec.pool)
            if is_served:
                yield _in_pool(ledger, slots, settings, console)
                return
    with machine(settings, console) as here:
        slots = Counter([hardware.of_this_machine()])

        def start(spec: JobSpec, rows: int, batches: int | None) -> tuple[Job, Unreadable]:
            return start_pilot(here, spec, rows, batches=batches)

        yield PilotPlace(here.ledger, slots, True, start, here.work_on)


def _in_pool(
    ledger: Ledger, slots: Mapping[str, int], settings: Settings, console: Console
) -> PilotPlace:
    def start(spec: JobSpec, rows: int, batches: int | None) -> tuple[Job, Unreadable]:
        submitted, unreadable = pilot.submit_pilot(ledger, spec, settings, rows, batches=batches)
        return open_job(ledger, submitted, spec, console), unreadable

    def work_on(job: Job, stop: Callable[[], bool]) -> Job:
        return progress.follow(ledger, job.id, console, stop=stop).job

    return PilotPlace(ledger, slots, False, start, work_on)
