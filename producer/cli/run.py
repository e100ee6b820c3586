"""Commands that run a job: run, submit."""

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.text import counted, counted_batches
from nightshift.producer.cli import context, proposals
from nightshift.producer.cli.flags import Flags, takes_flags
from nightshift.producer.cli.job_spec import job_spec

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.settings import Settings
    from nightshift.common.spec import JobSpec
    from nightshift.producer.advice.here import Here
    from nightshift.producer.local.run import Beside
    from nightshift.producer.submit.submitted import Submitted

Target = Annotated[
    str,
    typer.Argument(
        metavar="SPEC|INPUT",
        help="A job spec (.yaml), or input: a file, a directory, a glob; local, s3:// or gs://.",
        show_default=False,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC|INPUT…",
        help="A job spec (.yaml), or input: a file, a directory, a glob; local, s3:// or gs://. "
        "With --append files, as many as you like.",
        show_default=False,
    ),
]
PilotRows = Annotated[
    int | None, typer.Option(min=1, help="Run this many random rows first, as a job of its own.")
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="Of an OpenAI batch file, the file of its results; NAME.results.jsonl without it. "
        "Errors go beside it.",
    ),
]
New = Annotated[bool, typer.Option("--new", help="Another job, into another output directory.")]
Adopt = Annotated[
    bool,
    typer.Option(
        "--adopt",
        help="Take the output directory over from the same job of a ledger that is lost: the parts "
        "of that job are removed, and their rows run again.",
    ),
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Delete the failed or cancelled job that has the output directory, if it has no committed rows, and use "
        "the directory.",
    ),
]


@takes_flags
def run(
    target: Target,
    *,
    flags: Flags,
    new: New = False,
    adopt: Adopt = False,
    replace: Replace = False,
    to: To = None,
    pilot: PilotRows = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="After the pilot, run the rest without asking.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Engines at once: for a function a process each, such as one a core. Else one a GPU, or one "
            "on CPU.",
        ),
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Print a link to pages that show the job while it runs.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append to FILE when each step was reached, and print the steps of this run at its end.",
        ),
    ] = None,
) -> None:
    """Run a job on this machine to its end; the same command continues after a crash.

    With --pilot a random sample runs first: its answers and errors are shown, and what the whole
    job would take. Then you are asked. Exits with 3 when the whole job does not run.
    """
    settings = context.command_settings()
    _refuse_with_replace(replace, new=new, adopt=adopt)
    spec = job_spec(target, flags)
    if yes and pilot is None:
        raise BadInput("--yes answers the question after a --pilot: add one, such as --pilot 200")
    if spec.task.kind == "requests":
        to = context.allowed_file(settings, to or f"{spec.name}.results.jsonl")
    elif to is not None:
        raise BadInput("--to is for OpenAI batch files: `nightshift collect` writes other outputs")
    from nightshift.producer.local.before_servers import check_before_servers

    messages = context.console()
    say = partial(messages.print, style="yellow", soft_wrap=True, highlight=False, markup=False)
    check_before_servers(spec, settings, say, adopt=adopt, replace=replace)
    # What starts servers is imported once nothing is wrong: a mistake is answered sooner.
    from nightshift.producer.local.run import run as run_job

    code = run_job(
        spec,
        settings,
        new=new,
        adopt=adopt,
        replace=replace,
        console=messages,
        pilot_rows=pilot,
        agreed=yes,
        results=to,
        beside=_pages(settings, messages) if ui else nullcontext,
        profile=profile,
        slots=slots,
    )
    raise typer.Exit(code)


def _pages(settings: "Settings", messages: "Console") -> "Beside":
    """Pages beside a run, where a wing has some."""
    from nightshift.producer import wings

    for pages in wings.offered("pages"):
        return partial(pages, settings, messages)
    raise BadInput("--ui wants nightshift with its folder producer/serve")


@takes_flags
def submit(
    targets: Targets = None,
    *,
    flags: Flags,
    new: New = False,
    adopt: Adopt = False,
    replace: Replace = False,
    append: Annotated[
        str | None,
        typer.Option(
            metavar="JOB",
            autocompletion=proposals.jobs,
            help="Add files to this job in place of a new one: those named, or what is new in the "
            "job's own input.",
        ),
    ] = None,
    last: Annotated[
        bool,
        typer.Option("--last", help="With --append: watch the job's input no longer after this."),
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Put a job into the ledger for the fleet; the same spec again gives the same job.

    With --append JOB files become further rows of a job that exists, numbered behind its last row.
    A job that was over runs again. A file that the job has is left out; one that changed since is
    named, and left as it was.
    """
    settings = context.command_settings()
    if append is not None:
        _refuse_with_append(flags, new=new, adopt=adopt, replace=replace)
        _append(append, targets or [], settings, last=last, as_json=as_json)
        return
    if last:
        raise BadInput("--last goes with --append JOB")
    _refuse_with_replace(replace, new=new, adopt=adopt)
    spec = job_spec(_one_target(targets or []), flags)
    from nightshift.producer.control import replacement
    from nightshift.producer.results import past_end
    from nightshift.producer.submit.intake import Asked
    from nightshift.producer.submit.submit import submit as submit_job

    with context.opened(settings) as (ledger, here):
        replaced = replacement.replace(ledger, spec, settings) if replace else None
        done = submit_job(ledger, spec, settings, Asked(new, adopt))
        past, code = None, list[str]()
        if not done.is_new:
            folders = (str(Path.cwd()), *settings.callable_paths)
            job = context.find_job(ledger, str(done.job_id))
            past = past_end.of(ledger, job, folders)
            code = past_end.code_remarks(ledger, job, folders) if past is None else past.remarks
    gone = (
        []
        if replaced is None
        else [f"{replaced.label} was deleted; this job uses its output directory"]
    )
    remarks = [*gone, *done.remarks, *code]
    state = "submitted" if done.is_new else f"known, {done.state}"
    said = f"job {done.job_id} ({spec.name}) {state}: {counted(done.rows, 'row')} in {counted_batches(done.batches)}"
    if as_json:
        context.print_json(
            {
                "job": done.job_id,
                "name": spec.name,
                "new": done.is_new,
                "status": str(done.state),
                "rows": done.rows,
                "batches": done.batches,
                "replaced": None if replaced is None else replaced.id,
                "remarks": remarks,
                "message": said,
            }
        )
    else:
        typer.echo(said)
        if past is not None:
            typer.echo(past.ended)
    for message in (*remarks, *_remarks_here(spec, done, settings, here)):
        typer.echo(f"nightshift: {message}", err=True)
    if past is not None and past.lost is not None:
        raise typer.Exit(ExitCode.NOT_FINISHED)


def _one_target(targets: list[str]) -> str:
    if len(targets) != 1:
        raise BadInput(
            f"name one spec or one input, and not {len(targets)}: several files are a folder, "
            "a quoted pattern, or a list in a spec"
        )
    return targets[0]


def _remarks_here(
    spec: "JobSpec", done: "Submitted", settings: "Settings", here: "Here"
) -> Iterator[str]:
    """What the settings of this machine, and who works here, mean for a job that was submitted."""
    from nightshift.common.permits import engine_args
    from nightshift.producer.advice.advice import Subject, nobody_works

    job = Subject(done.job_id, spec.pool, spec.engine_key)
    if not done.state.over and (then := nobody_works(here, job)):
        yield f"no worker runs the job here: {then}"
    if settings.allowed_engine_args is None and (needed := engine_args.guarded(spec.engine)):
        yield (
            f"engine.args {', '.join(needed)} run only on workers whose operator names them in "
            f"{engine_args.SETTING}, which is not set here"
        )
    if settings.database_url is not None and settings.broker_url is None:
        yield (
            "NIGHTSHIFT_BROKER_URL is not set here; workers are woken by the reaper's broker, else "
            "they ask Postgres"
        )


def _refuse_with_replace(replace: bool, *, new: bool, adopt: bool) -> None:
    given = ["--new"] * new + ["--adopt"] * adopt
    if replace and given:
        raise BadInput(
            f"{given[0]} does not go with --replace, which takes the output directory of a job of this ledger"
        )


def _refuse_with_append(flags: Flags, *, new: bool, adopt: bool, replace: bool) -> None:
    given = flags.given(*(field.name for field in dataclasses.fields(Flags)))
    given += ["--new"] * new + ["--adopt"] * adopt + ["--replace"] * replace
    if given:
        raise BadInput(f"{given[0]} does not go with --append: the job keeps the spec that it has")


def _append(
    reference: str, uris: list[str], settings: "Settings", *, last: bool, as_json: bool
) -> None:
    from nightshift.producer.results import past_end
    from nightshift.producer.submit import append_command

    with context.opened(settings) as (ledger, here):
        job = context.find_job(ledger, reference)
        taken = append_command.take(ledger, job, uris, settings, last=last)
        folders = (str(Path.cwd()), *settings.callable_paths)
        remarks = past_end.code_remarks(ledger, job, folders)
    said = append_command.summary(job, taken, here)
    if as_json:
        context.print_json(
            {
                "job": job.id,
                "generation": taken.appended.generation,
                "files": taken.appended.files,
                "rows": taken.appended.rows,
                "batches": taken.appended.batches,
                "changed": taken.changed,
                "watch_ended": taken.stopped,
                "remarks": remarks,
                "message": " ".join(said),
            }
        )
    else:
        for line in said:
            typer.echo(line)
    for remark in remarks:
        typer.echo(f"nightshift: {remark}", err=True)
