"""One job on one machine, from its submission to its end, after a pilot where one is wanted.

After a crash, the same command continues the job.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from rich.console import Console

from nightshift.common import permits
from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings, visible_gpus
from nightshift.common.spec import JobSpec
from nightshift.common.telemetry import step_table
from nightshift.common.telemetry.steps import Step, StepFile, checked, process_began
from nightshift.producer import wings
from nightshift.producer.advice.here import NOBODY
from nightshift.producer.local.machine import Machine, machine
from nightshift.producer.local.slots import refuse_slots
from nightshift.producer.local.worker_settings import for_spec
from nightshift.producer.results import openai_batch_results, past_end
from nightshift.producer.submit.submit import is_known, spec_and_identity
from nightshift.producer.views import progress

Beside = Callable[[Ledger], AbstractContextManager[object]]
"""A context that runs beside a run, over its ledger."""


def run(
    spec: JobSpec,
    settings: Settings,
    *,
    new: bool,
    console: Console,
    adopt: bool = False,
    replace: bool = False,
    pilot_rows: int | None = None,
    agreed: bool = False,
    results: str | None = None,
    beside: Beside = nullcontext,
    profile: Path | None = None,
    slots: int | None = None,
) -> int:
    """Submits or continues the job and works until it is over; returns the exit code. The caller has checked what a
    look at this machine shows (`before_servers`).

    0 every row has an answer, 1 finished with row errors, 3 failed, paused, cancelled, or stopped
    after the pilot. `new` and `adopt` are those of the submit; `replace` deletes a failed or cancelled job first. After
    a pilot of `pilot_rows` somebody is asked, unless it is `agreed` to run the rest. `results` is where the lines of an OpenAI batch go. `beside` goes on while
    the job runs. The worker appends its times to `profile`, and the steps are printed at the end. `slots` engines
    work at once. Raises BadInput when the spec, the input, `results` or the home folder cannot be used.
    """
    settings = permits.of_operator(spec, settings)
    refuse_slots(spec, slots, len(visible_gpus()))
    if results is not None:
        openai_batch_results.check_targets(*spec_and_identity(spec, settings), results)
    with (
        _profiled(profile, console) as steps,
        machine(settings, console, steps=steps, slots=slots) as here,
        beside(here.ledger),
    ):
        if replace:
            here.replace(spec)
        # A known job has passed its pilot: nobody is asked again after a crash.
        may_run = pilot_rows is None or is_known(here.ledger, spec)
        if not may_run and not _pilot(
            here, spec, settings, console, rows=pilot_rows or 0, adopt=adopt, agreed=agreed
        ):
            return ExitCode.NOT_FINISHED
        job = here.submit(spec, new=new, adopt=adopt)
        if results is not None:
            openai_batch_results.check_targets(job.spec, job.identity, results)
        folders = for_spec(job.spec, settings).callable_paths
        past = past_end.of(here.ledger, job, folders)
        if past is not None:
            console.print(past.ended, soft_wrap=True, highlight=False, markup=False)
            for warning in past.warnings:
                console.print(warning, style="yellow", soft_wrap=True, markup=False)
            code = progress.report_end(here.ledger, job, console, NOBODY, ran=False)
            if past.lost is not None:
                return ExitCode.NOT_FINISHED
        else:
            for remark in past_end.code_remarks(here.ledger, job, folders):
                console.print(remark, style="yellow", soft_wrap=True, highlight=False, markup=False)
            job = here.work_on(job)
            code = progress.report_end(here.ledger, job, console, NOBODY)
        if results is not None:
            openai_batch_results.report(here.ledger, job, results, console)
        return code


def _pilot(
    here: Machine, spec: JobSpec, settings: Settings, console: Console, **given: int
) -> bool:
    """Runs a sample of the job first, where a wing does that; whether the job runs then."""
    pilots = wings.offered("pilot")
    if not pilots:
        raise BadInput("--pilot wants nightshift with its folder producer/estimate")
    return all(run_pilot(here, spec, settings, console, **given) for run_pilot in pilots)


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
