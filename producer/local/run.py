"""One job on one machine, from its submission to its end, after a pilot where one is wanted.

The same command after a crash goes on where the job stood.
"""

from rich.console import Console

from nightshift.common.ledger import Ledger, spending
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.estimate import pilot
from nightshift.producer.estimate.estimate import Estimate, estimate
from nightshift.producer.estimate.pilot import FinishedPilot, PilotOptions
from nightshift.producer.local.machine import machine, open_job
from nightshift.producer.results import openai_batch_results
from nightshift.producer.submit.submit import is_known, spec_and_identity
from nightshift.producer.views import progress


def run(
    spec: JobSpec,
    settings: Settings,
    *,
    new: bool,
    console: Console,
    pilot_first: PilotOptions | None = None,
    results: str | None = None,
) -> int:
    """Submits or continues the job and works until it is over; returns the exit code.

    0 every row has an answer, 1 finished with row errors, 3 failed, paused, cancelled, or stopped
    after the pilot. `results` is where the lines of an OpenAI batch go. Raises BadInput when the
    spec, the input, `results` or the home folder cannot be used.
    """
    if results is not None:
        openai_batch_results.check_targets(*spec_and_identity(spec, settings), results)
    with machine(settings) as here:
        # A known job has passed its pilot: nobody is asked again after a crash.
        if pilot_first is not None and not is_known(here.ledger, spec):
            finished = here.run_pilot(spec, pilot_first.rows, console)
            code = pilot.decide(here.ledger, spec, settings, finished, console, pilot_first)
            if code is not None:
                return code
        job = here.submit(spec, new=new, console=console)
        if results is not None:
            openai_batch_results.check_targets(job.spec, job.identity, results)
        job = here.work_on(job, console)
        code = progress.report_end(here.ledger, job, console)
        if results is not None:
            openai_batch_results.report(here.ledger, job, results, console)
        return code


def estimate_by_pilot(
    spec: JobSpec,
    settings: Settings,
    rows: int,
    workers: int | None,
    console: Console,
    *,
    fleet: Ledger | None = None,
) -> Estimate | None:
    """Runs a pilot and estimates by it; None when the pilot did not come to its end.

    Where workers of the pool live in the ledger `fleet`, they run the pilot: the speed of another
    machine would say little. Else this machine runs it.
    """
    if fleet is not None and _has_workers(fleet, spec.pool):
        submitted, unreadable = pilot.submit_pilot(fleet, spec, settings, rows)
        job = progress.follow(fleet, open_job(fleet, submitted, spec, console).id, console)
        return _estimate(fleet, spec, settings, FinishedPilot(job, unreadable), workers, console)
    with machine(settings) as here:
        finished = here.run_pilot(spec, rows, console)
        return _estimate(here.ledger, spec, settings, finished, workers, console)


def _estimate(
    ledger: Ledger,
    spec: JobSpec,
    settings: Settings,
    finished: FinishedPilot,
    workers: int | None,
    console: Console,
) -> Estimate | None:
    if not pilot.show(ledger, finished, console):
        return None
    return estimate(spec, settings, ledger, workers=workers, pilot=finished.job.id)


def _has_workers(ledger: Ledger, pool: str) -> bool:
    with ledger.transaction() as connection:
        return spending.slots(connection, pool)[0] > 0
