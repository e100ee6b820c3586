"""The `nightshift` command: submit, look, control; one thin function a command.

What a command needs is imported when it runs, so that `nightshift --help` answers at once.
"""

import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli.flags import Flags, job_spec, takes_flags
from nightshift.producer.cli.one_sentence import OneSentence

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.ledger import Ledger
    from nightshift.common.ledger.jobs import Job
    from nightshift.common.settings import Settings
    from nightshift.common.spec import JobSpec
    from nightshift.common.states import RowErrorKind
    from nightshift.producer.estimate.estimate import Estimate

EXIT_FINDINGS = 1

PIPE_COLUMNS = 160
"""Width of a table that nobody looks at in a terminal."""


app = typer.Typer(
    cls=OneSentence,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run a model over millions of rows: no row lost, none twice.",
)

RUN, LOOK, CONTROL, FLEET = "Run", "Look", "Control", "Fleet"

Target = Annotated[
    str,
    typer.Argument(
        metavar="SPEC|INPUT",
        help="A job spec (.yaml), or input: a file, a directory, a glob; local, s3:// or gs://.",
        show_default=False,
    ),
]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Number or name of a job.", show_default=False)
]
SomeJob = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="Number or name; all jobs without one.")
]
PilotRows = Annotated[
    int | None, typer.Option(min=1, help="Run so many random rows first, as a job of its own.")
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


@app.callback()
def everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Nothing to prepare: `OneSentence` reads the flag."""


@app.command(rich_help_panel=RUN)
@takes_flags
def run(
    target: Target,
    *,
    flags: Flags,
    new: New = False,
    to: To = None,
    pilot: PilotRows = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="After the pilot, run the rest without asking.")
    ] = False,
) -> None:
    """Run a job on this machine to its end; the same command again goes on after a crash.

    With --pilot a random sample runs first: its answers and errors are shown, and what the whole
    job would take. Then you are asked. Exits with 3 when the whole job does not run.
    """
    settings = _settings()
    spec = job_spec(target, flags)
    if yes and pilot is None:
        raise BadInput("--yes answers the question after a --pilot: add one, such as --pilot 200")
    if spec.task.kind == "requests":
        to = _target(settings, to or f"{spec.name}.results.jsonl")
    elif to is not None:
        raise BadInput("--to is for OpenAI batch files: `nightshift collect` writes other outputs")
    from nightshift.producer import local
    from nightshift.producer.estimate.pilot import Pilot

    first = None if pilot is None else Pilot(pilot, yes)
    raise typer.Exit(
        local.run(spec, settings, new=new, console=_console(), first=first, results=to)
    )


@app.command(rich_help_panel=RUN)
@takes_flags
def estimate(
    target: Target,
    *,
    flags: Flags,
    pilot: PilotRows = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Engines at work; else those that live now.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what a job would take: prompts, hours, money, and when it would be over.

    Prompts are counted in a random sample of 1,000 rows. Speed and answers come from jobs with
    the same engine in this ledger, or from --pilot, which runs a sample now: on the workers of the
    pool where some live, else on this machine. Nothing else is run, and nothing is submitted.
    """
    from nightshift.producer.estimate import estimate_table
    from nightshift.producer.estimate.estimate import as_json as plainly

    if flags.out is None and pilot is None:
        flags = dataclasses.replace(flags, out="out")
    spec, settings = job_spec(target, flags), _settings()
    made = _estimate(spec, settings, pilot, workers, _console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(plainly(made), indent=2))
    else:
        _console().print(estimate_table.picture(made))


def _estimate(
    spec: "JobSpec",
    settings: "Settings",
    pilot: int | None,
    workers: int | None,
    console: "Console",
) -> "Estimate":
    from nightshift.producer import local
    from nightshift.producer.connect import has_ledger, open_ledger
    from nightshift.producer.estimate.estimate import estimate as guess
    from nightshift.producer.views import progress

    if pilot is None and not has_ledger(settings):
        return guess(spec, settings, None, workers=workers)
    if pilot is not None and settings.database_url is None:
        made = local.try_out(spec, settings, pilot, workers, console)
    else:
        with open_ledger(settings) as opened:
            if pilot is None:
                return guess(spec, settings, opened.ledger, workers=workers)
            made = local.try_out(spec, settings, pilot, workers, console, fleet=opened.ledger)
    if made is None:
        raise typer.Exit(progress.EXIT_NOT_FINISHED)
    return made


@app.command(rich_help_panel=RUN)
@takes_flags
def submit(target: Target, *, flags: Flags, new: New = False) -> None:
    """Put a job into the ledger for the fleet; the same spec again gives the same job."""
    settings = _settings()
    spec = job_spec(target, flags)
    from nightshift.producer.submit.submit import submit as put

    with _ledger(settings) as ledger:
        done = put(ledger, spec, settings, new=new)
    said = "submitted" if done.is_new else f"known, {done.state}"
    typer.echo(
        f"job {done.job_id} ({spec.name}) {said}: {done.rows:,} rows in {done.batches:,} batches"
    )
    if settings.database_url is not None and settings.broker_url is None:
        typer.echo(
            "nightshift: NIGHTSHIFT_BROKER_URL is not set here; workers are woken by the "
            "reaper's broker, else they ask Postgres",
            err=True,
        )


@app.command(rich_help_panel=RUN)
def wait(job: JobName) -> None:
    """Wait for a job; exits 0 all answered, 1 with row errors, 3 failed, paused or cancelled."""
    with _followed(job) as (ledger, ended):
        from nightshift.producer.views.progress import report_end

        raise typer.Exit(report_end(ledger, ended, _console()))


@app.command(rich_help_panel=RUN)
def collect(
    job: JobName,
    to: Annotated[
        str, typer.Option("--to", help="The file: .parquet, .jsonl, or .npy for vectors.")
    ],
    partial: Annotated[bool, typer.Option(help="Take what a job has so far.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    manifest: Annotated[
        bool,
        typer.Option(
            "--manifest", help="The table of its parts instead; .parquet, .jsonl or .csv."
        ),
    ] = False,
    form: Annotated[
        Literal["openai"] | None,
        typer.Option(
            "--format",
            help="openai: result lines of the OpenAI batch API, and x.errors.jsonl beside x.jsonl.",
        ),
    ] = None,
) -> None:
    """Write the output of a job as one file, in the order of the dataset."""
    settings = _settings()
    to = _target(settings, to)
    if manifest:
        if partial or form is not None:
            raise BadInput(
                f"{'--partial' if partial else '--format'} is for the rows of a job, and --manifest "
                "lists its parts as they are: leave one out"
            )
        _collect_manifest(settings, job, to, force=force)
        return
    from nightshift.producer.results import openai_batch_results
    from nightshift.producer.results.collect import collect as gather
    from nightshift.producer.results.vectors import ids_uri

    with _ledger(settings) as ledger:
        found = _find(ledger, job)
        if form == "openai":
            done = openai_batch_results.collect(ledger, found, to, partial=partial, force=force)
            typer.echo(openai_batch_results.summary(done))
            return
        rows = gather(ledger, found, to, partial=partial, force=force)
    beside = f", their ids in {ids_uri(to)}" if to.lower().endswith(".npy") else ""
    typer.echo(f"{rows:,} rows in {to}{beside}")


@app.command(rich_help_panel=LOOK)
def status(
    job: SomeJob = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say where a job stands, or all of them."""
    from nightshift.common.ledger import jobs as ledger_jobs
    from nightshift.common.ledger import workers
    from nightshift.producer.views import rates, tables

    with _ledger(_settings()) as ledger:
        number = None if job is None else _find(ledger, job).id
        with ledger.transaction() as connection:
            if number is None:
                rows = ledger_jobs.listed(connection)
            else:
                rows = [ledger_jobs.progress(connection, number)]
            here = workers.status(connection)
    if as_json:
        objects = [rates.as_json(row) for row in rows]
        typer.echo(json.dumps(objects if number is None else objects[0], indent=2))
    elif number is None:
        _console().print(tables.overview(rows, here))
    else:
        _console().print(tables.status(rows[0], here))


@app.command(rich_help_panel=LOOK)
def watch(job: SomeJob = None) -> None:
    """Watch a job to its end, or all jobs and workers until Ctrl-C."""
    from nightshift.producer.views import progress

    if job is not None:
        with _followed(job) as (ledger, ended):
            progress.report_end(ledger, ended, _console())
        return
    with _ledger(_settings()) as ledger:
        progress.watch_all(ledger, _console())


@app.command(rich_help_panel=LOOK)
def jobs() -> None:
    """List the jobs, newest first."""
    from nightshift.common.ledger import jobs as ledger_jobs
    from nightshift.producer.views import tables

    with _ledger(_settings()) as ledger, ledger.transaction() as connection:
        rows = ledger_jobs.listed(connection)
    _console().print(tables.job_table(rows) if rows else "no jobs yet")


@app.command(rich_help_panel=LOOK)
def errors(
    job: JobName,
    kind: Annotated[str | None, typer.Option(help="Only rows that failed like this.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 20,
) -> None:
    """Show the rows that failed, and why."""
    from nightshift.common.ledger.queries import audit
    from nightshift.producer.views import tables

    with _ledger(_settings()) as ledger:
        number = _find(ledger, job).id
        with ledger.transaction() as connection:
            kinds = audit.count_errors(connection, number)
            rows = audit.errors(connection, number, kind=kind, limit=count)
    if kind is not None and kind not in kinds:
        _known_kind(kind)
    _console().print(tables.errors(rows, kinds))


@app.command(rich_help_panel=LOOK)
def sample(
    job: JobName,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many rows.")] = 20,
    seed: Annotated[int, typer.Option(help="Another seed draws other rows.")] = 0,
    errors_only: Annotated[
        bool, typer.Option("--errors", help="Draw among the rows that failed.")
    ] = False,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page that any browser opens.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: a line of JSON for each row.")
    ] = False,
) -> None:
    """Show some rows, input beside output."""
    from nightshift.producer.results import sample_page
    from nightshift.producer.results.sample import sample as draw
    from nightshift.producer.views import tables

    if html is not None and as_json:
        raise BadInput("--html writes a page and --json lines: give one of them")
    settings = _settings()
    if html is not None:
        _target(settings, html)
    with _ledger(settings) as ledger:
        found = _find(ledger, job)
        drawn = draw(ledger, found, count, seed, errors_only=errors_only)
        if html is not None:
            sample_page.write(ledger, found, drawn, html)
    if html is not None:
        typer.echo(f"{len(drawn.rows):,} rows in {html}")
    elif as_json:
        typer.echo(sample_page.lines(drawn), nl=False)
    else:
        _console().print(tables.sample_table(drawn.rows, drawn.inputs, drawn.outputs))
    if drawn.note:
        typer.echo(f"nightshift: {drawn.note}", err=True)


@app.command(rich_help_panel=RUN)
def judge(
    job: JobName,
    spec: Annotated[Path, typer.Option(help="The judge's job spec, without an input.")],
    count: Annotated[
        int | None, typer.Option("--sample", min=1, help="Judge so many rows, not all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws other rows.")] = 0,
    column: Annotated[
        str | None, typer.Option(help="Column of the judge's output, or column.property.")
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="What words are worth, as in good=1,bad=0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Let a second job judge the answers of a finished one; says the score and how sure it is.

    Runs here like `run`, or on the fleet that NIGHTSHIFT_DATABASE_URL names. Exits 0 when every
    row has a score, 1 when some have none, 3 when the judge did not come to its end.
    """
    from nightshift.producer.judge import judge as judges
    from nightshift.producer.judge.scores import Scale, parse_words
    from nightshift.producer.judge.verdict_table import verdict

    scale = Scale(column, parse_words(scores))
    shown = _console(stderr=as_json)
    found = judges.judge(_settings(), job, spec, scale, count=count, seed=seed, console=shown)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        shown.print(verdict(found))
    raise typer.Exit(found.exit_code)


@app.command(rich_help_panel=LOOK)
def verify(job: JobName) -> None:
    """Check from the outside that every row is there exactly once; exits 1 with findings."""
    from nightshift.producer.verify.verify import checks
    from nightshift.producer.views import tables

    console, findings = _console(), 0
    with _ledger(_settings()) as ledger:
        for check in checks(ledger, _find(ledger, job)):
            console.print(tables.check(check.name, check.said, check.findings))
            findings += len(check.findings)
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


@app.command(rich_help_panel=CONTROL)
def pause(job: JobName) -> None:
    """Stop a job from taking more work; batches that are under way end as usual."""
    from nightshift.common.ledger import jobs as ledger_jobs

    _change(job, ledger_jobs.pause, "is paused; `nightshift resume {id}` goes on")


@app.command(rich_help_panel=CONTROL)
def resume(
    job: JobName,
    budget: Annotated[
        float | None, typer.Option(help="Money that it may spend in all, as limits.budget.")
    ] = None,
) -> None:
    """Let a paused job go on."""
    from nightshift.common.ledger import jobs as ledger_jobs
    from nightshift.common.ledger import spending

    def go_on(connection: Any, job_id: int) -> None:
        if budget is not None:
            spending.set_budget(connection, job_id, budget)
        spending.refuse_spent(connection, job_id)
        ledger_jobs.resume(connection, job_id)

    _change(job, go_on, "goes on")


@app.command(rich_help_panel=CONTROL)
def cancel(job: JobName) -> None:
    """End a job for good; parts that are written stay."""
    from nightshift.common.ledger import jobs as ledger_jobs

    _change(job, ledger_jobs.cancel, "is cancelled")


@app.command(rich_help_panel=CONTROL)
def retry(
    job: JobName,
    failed: Annotated[bool, typer.Option("--failed", help="Every row that failed.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="What failed in dead batches.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="Of --failed, rows that failed like this.")
    ] = None,
) -> None:
    """Run failed rows again; rows that have an answer keep it.

    The new answers go into the parts of the old ones. Until then the rows count as open and are
    not listed as failed; if the job is cancelled before, they keep their old error. Rows of dead
    batches (kind batch_dead) are failed rows too. The manifest goes, and comes back at the end.
    """
    wanted = _known_kind(kind)
    if not failed and not dead:
        raise BadInput("say which rows run again: --failed (with --kind, if only some) or --dead")
    if wanted is not None and not failed:
        raise BadInput("--kind chooses among the rows of --failed: add it")
    from nightshift.producer import retry as retries
    from nightshift.producer.connect import open_ledger

    settings = _settings()
    with open_ledger(settings) as opened:
        found = _find(opened.ledger, job)
        done = retries.retry(opened.ledger, found, failed=failed, dead=dead, kind=wanted)
    # The `run` that keeps an embedded ledger up may be one of another job.
    nobody = opened.alone or (settings.database_url is None and done.reopened)
    typer.echo(retries.summary(found, done, nobody_works=nobody))


@app.command(rich_help_panel=FLEET)
def migrate() -> None:
    """Bring the tables of the ledger up to this code."""
    from nightshift.common.ledger import schema
    from nightshift.producer.connect import open_ledger

    with open_ledger(_settings(), checked=False) as opened:
        found = schema.migrate(opened.ledger)
        schema.check(opened.ledger)
        newer = f", newer than the {schema.SCHEMA:04} of this code, which may use it"
        typer.echo(
            f"{opened.ledger.place} is at migration {found:04}"
            f"{newer if found > schema.SCHEMA else ''}"
        )


@app.command(rich_help_panel=FLEET)
def reaper() -> None:
    """Keep the fleet going: take back lost leases, hand out work, finish jobs; run two or more."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from nightshift.common import logs
    from nightshift.common.settings import load_settings

    settings = load_settings()
    logs.configure(settings, process="reaper")
    if settings.database_url is None:
        raise BadInput("NIGHTSHIFT_DATABASE_URL is not set: a reaper needs the ledger")
    from nightshift.common.telemetry import run_state
    from nightshift.producer.reaper import loop as duties

    state = None if settings.run_dir is None else run_state.claim(settings.run_dir, "reaper")
    with _ledger(settings) as ledger:
        duties.run(ledger, settings, stop, state)


@app.command(rich_help_panel=FLEET)
def alive() -> None:
    """Say whether the reaper of NIGHTSHIFT_RUN_DIR makes its rounds; for a liveness probe."""
    from nightshift.producer.reaper import alive as probe

    raise typer.Exit(probe.answer())


def main() -> None:
    """Every command, by its own name whoever calls."""
    app(prog_name="nightshift")


def _settings() -> "Settings":
    """Settings with logs for a command that people look at: warnings only, unless asked."""
    from nightshift.common import logs
    from nightshift.common.settings import load_settings

    settings = load_settings()
    quiet = {} if "log_level" in settings.model_fields_set else {"log_level": "warning"}
    logs.configure(settings.model_copy(update=quiet))
    return settings


def _target(settings: "Settings", uri: str) -> str:
    """A file that is to be written, which may lie only where the operator lets files lie."""
    from nightshift.common.storage import storage

    storage.check_roots([storage.resolve(uri)], settings.allowed_roots)
    return uri


def _collect_manifest(settings: "Settings", reference: str, to: str, *, force: bool) -> None:
    from nightshift.producer.results import manifest_table

    with _ledger(settings) as ledger:
        job = _find(ledger, reference)
        done = manifest_table.write(ledger, job, to, force=force)
    typer.echo(f"{done.parts:,} parts in {to}")
    if done.rows_left:
        typer.echo(f"job {job.id} is {job.state}: {done.rows_left:,} rows are in no part yet")


def _console(*, stderr: bool = False) -> "Console":
    from nightshift.producer.cli.console import PlainConsole

    seen = (sys.stderr if stderr else sys.stdout).isatty()
    return PlainConsole(highlight=False, stderr=stderr, width=None if seen else PIPE_COLUMNS)


def _known_kind(kind: str | None) -> "RowErrorKind | None":
    from nightshift.common.states import RowErrorKind

    if kind is not None and kind not in list(RowErrorKind):
        raise BadInput(f"--kind {kind!r} is none of {', '.join(RowErrorKind)}")
    return None if kind is None else RowErrorKind(kind)


@contextmanager
def _ledger(settings: "Settings") -> Iterator["Ledger"]:
    from nightshift.producer.connect import open_ledger

    with open_ledger(settings) as opened:
        yield opened.ledger


def _find(ledger: "Ledger", reference: str) -> "Job":
    from nightshift.common.ledger import jobs as ledger_jobs

    with ledger.transaction() as connection:
        return ledger_jobs.find(connection, reference)


@contextmanager
def _followed(reference: str) -> Iterator[tuple["Ledger", "Job"]]:
    """A job that was watched until it is over or paused."""
    from nightshift.producer.connect import open_ledger
    from nightshift.producer.views.progress import follow

    with open_ledger(_settings()) as opened:
        job = _find(opened.ledger, reference)
        if opened.alone and job.closed_at is None and job.state != "paused":
            raise BadInput(f"nobody works on job {job.id}: `nightshift run` with its spec goes on")
        yield opened.ledger, follow(opened.ledger, job.id, _console())


def _change(reference: str, change: Any, said: str) -> None:
    with _ledger(_settings()) as ledger:
        job = _find(ledger, reference)
        with ledger.transaction() as connection:
            change(connection, job.id)
    typer.echo(f"job {job.id} ({job.spec.name}) {said.format(id=job.id)}")
