"""`ns.run`: a job on this machine, from the call to its end."""

from functools import partial
from pathlib import Path
from typing import Unpack

from nightshift import display
from nightshift.common import permits
from nightshift.common.errors import BadInput
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.job import Job, ended
from nightshift.producer.connect import open_ledger
from nightshift.producer.local.before_servers import check_before_servers
from nightshift.producer.local.machine import machine
from nightshift.producer.local.worker_settings import for_spec
from nightshift.producer.results import past_end
from nightshift.producer.submit.submit import spec_and_identity
from nightshift.snapshot import statuses
from nightshift.specs import JobOptions, function_folder, is_whole, spec_of, spelled_out

IDENTITY_DIGITS = 12


@spelled_out
def run(
    data: object,
    *,
    home: str | Path | None = None,
    stage: str | None = None,
    progress: bool = True,
    adopt: bool = False,
    **options: Unpack[JobOptions],
) -> Job:
    """Runs a job on this machine to its end, with a Postgres, a Redis and a worker of its own.

    `data` is what `Client.submit` takes. Everything lies in the folder `home`, which is
    NIGHTSHIFT_HOME, else `.nightshift` in the working directory: the ledger, tables that were staged
    (`home/staging`, or `stage`), and the output (`home/runs/NAME-HASH`, or `out`). One call at a time
    uses a home.

    The same call after a crash or an interrupt goes on where the job stood; after its end it gives
    the same answers at once. `adopt` takes the output directory over from the same job of a ledger that
    is gone: the parts of that job are removed, and their rows run again. An interrupt (Ctrl-C, the stop button of a notebook) gives rows under way
    back and ends every process; when this process dies, they end with it.

    Raises BadInput when the job or the folder cannot be used, also where the output of a completed job
    is gone, JobStopped when the job failed or was
    paused. Rows with errors are in the output, and no reason to raise.
    """
    settings = display.settings_of(home=home)
    console = display.console(progress=progress)
    folder = settings.home.absolute()
    staging = stage or str(folder / "staging")
    runs = str(folder / "runs")
    spec = spec_of(data, options, stage=staging, out=runs, allowed_roots=settings.allowed_roots)
    settings = _with_folder_of(options.get("function"), settings)
    if not is_whole(data) and options.get("out") is None:
        spec = _in_own_directory(spec, settings, runs)
    say = partial(console.print, style="yellow", soft_wrap=True, highlight=False, markup=False)
    check_before_servers(spec, settings, say, adopt=adopt)
    with machine(settings, console) as here:
        job = here.submit(spec, adopt=adopt)
        folders = for_spec(job.spec, settings).callable_paths
        past = past_end.of(here.ledger, job, folders)
        if past is None:
            for remark in past_end.code_remarks(here.ledger, job, folders):
                console.print(remark, style="yellow", soft_wrap=True, highlight=False, markup=False)
            job = here.work_on(job)
        elif past.lost is not None:
            raise BadInput(past.lost)
        else:
            for remark in (past.ended, *past.remarks):
                console.print(remark, soft_wrap=True, highlight=False, markup=False)
        with here.ledger.transaction() as connection:
            [status] = statuses(connection, [job_pace.of(connection, job.id)])
    console.print(f"{status}; output in {status.output_uri}", soft_wrap=True)
    ended(status)
    return Job(partial(open_ledger, settings), job.id, job.spec.name, job.output_uri)


def _with_folder_of(function: object, settings: Settings) -> Settings:
    """The settings of a worker that finds the function where this process found it."""
    folder = function_folder(function)
    if folder is None:
        return settings
    return settings.model_copy(update={"callable_paths": (*settings.callable_paths, folder)})


def _in_own_directory(spec: JobSpec, settings: Settings, runs: str) -> JobSpec:
    """The spec with an output directory named by what the job is, files included: the same call
    finds its directory again, and another one gets another.
    """
    _, identity = spec_and_identity(spec, permits.of_operator(spec, settings))
    uri = f"{runs}/{spec.name}-{identity[:IDENTITY_DIGITS]}"
    return spec.model_copy(update={"output": spec.output.model_copy(update={"uri": uri})})
