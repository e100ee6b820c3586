"""One job on one machine, from its submission to its end, after a pilot where one is wanted.

The same command after a crash goes on where the job stood.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nightshift.common import permits
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.engines import tunings
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.processes import hardware
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.telemetry import step_table
from nightshift.common.telemetry.steps import Step, StepFile, checked, process_began
from nightshift.producer.advice.here import NOBODY
from nightshift.producer.connect import has_ledger, open_ledger
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.estimate import Estimate, estimate
from nightshift.producer.estimate.pilot import FinishedPilot, Unreadable
from nightshift.producer.local.fleet import for_spec
from nightshift.producer.local.known_job import open_job
from nightshift.producer.local.machine import machine
from nightshift.producer.results import openai_batch_results, past_end
from nightshift.producer.submit.submit import check_before, is_known, spec_and_identity
from nightshift.producer.views import progress

Beside = Callable[[Ledger], AbstractContextManager[object]]
"""What goes on beside a run, over its ledger."""


def run(
    spec: JobSpec,
    settings: Settings,
    *,
    new: bool,
    console: Console,
    adopt: bool = False,
    pilot_rows: int | None = None,
    agreed: bool = False,
    results: str | None = None,
    beside: Beside = nullcontext,
    profile: Path | None = None,
) -> int:
    """Submits or continues the job and works until it is over; returns the exit code.

    0 every row has an answer, 1 finished with row errors, 3 failed, paused, cancelled, or stopped
    after the pilot. `new` and `adopt` are those of the submit. After a pilot of `pilot_rows`
    somebody is asked, unless it is `agreed` to run the rest. `results` is where the lines of an OpenAI batch go. `beside` goes on while
    the job runs. The worker appends its times to `profile`, and the steps are printed at the end. Raises BadInput when the spec, the input, `results` or the home folder cannot be used.
    """
    settings = permits.of_operator(spec, settings)
    check_before(spec, settings, has_ledger=has_ledger(settings), adopt=adopt)
    if results is not None:
        openai_batch_results.check_targets(*spec_and_identity(spec, settings), results)
    with (
        _profiled(profile, console) as steps,
        machine(settings, console, steps=steps) as here,
        beside(here.ledger),
    ):
        # A known job has passed its pilot: nobody is asked again after a crash.
        if pilot_rows is not None and not is_known(here.ledger, spec):
            finished = here.run_pilot(spec, pilot_rows, adopt=adopt)
            made = pilot.shown_estimate(here.ledger, spec, settings, finished, console)
            if made is None or not pilot.goes_on(
                here.ledger, spec, finished, made, console, agreed=agreed
            ):
                return progress.EXIT_NOT_FINISHED
        job = here.submit(spec, new=new, adopt=adopt)
        if results is not None:
            openai_batch_results.check_targets(job.spec, job.identity, results)
        past = past_end.of(here.ledger, job, for_spec(job.spec, settings).callable_paths)
        if past is not None:
            console.print(past.ended, soft_wrap=True, highlight=False, markup=False)
            for warning in past.warnings:
                console.print(warning, style="yellow", soft_wrap=True, markup=False)
            code = progress.report_end(here.ledger, job, console, NOBODY, ran=False)
            if past.lost is not None:
                return progress.EXIT_NOT_FINISHED
        else:
            job = here.work_on(job)
            code = progress.report_end(here.ledger, job, console, NOBODY)
        if results is not None:
            openai_batch_results.report(here.ledger, job, results, console)
        return code


@contextmanager
def _profiled(profile: Path | None, console: Console) -> Iterator[StepFile]:
    """Notes the steps of a run in its profile, and prints them at its end."""
    if profile is None:
        yield StepFile(None)
        return
    began = process_began()
    steps = StepFile(checked(profile))
    steps.note(Step.BEGUN, at=began)
    steps.note(Step.READ)
    yield steps
    steps.note(Step.LEFT)
    step_table.show(step_table.way(step_table.read(profile, since=began)), console)


def run_estimate(
    spec: JobSpec,
    settings: Settings,
    console: Console,
    *,
    pilot_rows: int | None,
    workers: int | None,
) -> Estimate | None:
    """Estimates by what the ledger knows, or by a pilot of so many rows, which runs now; None when
    the pilot did not come to its end.
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

    `start` submits a pilot of so many rows in so many batches, and `work_on` returns its job when it is
    over or paused, or when the function says stop.
    """

    ledger: Ledger
    slots: Mapping[str, int]
    is_here: bool
    start: Callable[[JobSpec, int, int], tuple[Job, Unreadable]]
    work_on: Callable[[Job, Callable[[], bool]], Job]

    def run(self, spec: JobSpec, rows: int) -> FinishedPilot:
        """Runs a pilot of so many rows to its end."""
        job, unreadable = self.start(spec, rows, pilot.BATCHES)
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

        def start(spec: JobSpec, rows: int, batches: int) -> tuple[Job, Unreadable]:
            return here.start_pilot(spec, rows, batches=batches)

        yield PilotPlace(here.ledger, slots, True, start, here.work_on)


def _in_pool(
    ledger: Ledger, slots: Mapping[str, int], settings: Settings, console: Console
) -> PilotPlace:
    def start(spec: JobSpec, rows: int, batches: int) -> tuple[Job, Unreadable]:
        submitted, unreadable = pilot.submit_pilot(ledger, spec, settings, rows, batches=batches)
        return open_job(ledger, submitted, spec, console), unreadable

    def work_on(job: Job, stop: Callable[[], bool]) -> Job:
        return progress.follow(ledger, job.id, console, stop=stop).job

    return PilotPlace(ledger, slots, False, start, work_on)
