"""Commands that show jobs: wait, watch, status, jobs, errors, sample."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.text import counted
from nightshift.producer.cli import context, proposals

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.ledger import Ledger
    from nightshift.common.ledger.jobs.jobs import Job
    from nightshift.producer.advice.here import Here


def wait(job: context.JobName, *, as_json: context.AsJson = False) -> None:
    """Wait for a job; exits 0 all answered, 1 row errors, 3 failed, paused or cancelled.

    A job that watches its input (input.watch) stays open: the wait ends when everything that was
    found so far is done, with the exit code that the job would have if it ended now.
    """
    from nightshift.producer.results import past_end
    from nightshift.producer.views import progress

    console = context.console(stderr=as_json)
    with _followed(job, console, until_idle=True) as (ledger, ended, here):
        lost = past_end.lost(ledger, ended)
        if as_json:
            values, code = progress.end_as_json(ledger, ended)
            context.print_json(values)
        else:
            code = progress.report_end(ledger, ended, context.console(), here)
    if lost is not None:
        typer.echo(f"nightshift: {lost}", err=True)
        code = ExitCode.NOT_FINISHED
    raise typer.Exit(code)


def watch(job: context.SomeJob = None) -> None:
    """Watch a job to its end, or all jobs and workers until Ctrl-C."""
    from nightshift.producer.views import progress

    if job is not None:
        with _followed(job, context.console()) as (ledger, ended, here):
            progress.report_end(ledger, ended, context.console(), here)
        return
    with context.opened() as (ledger, here):
        progress.watch_all(ledger, context.console(), here)


@contextmanager
def _followed(
    reference: str, console: "Console", *, until_idle: bool = False
) -> Iterator[tuple["Ledger", "Job", "Here"]]:
    """The job, shown on the console until it is over or paused, its ledger, and who works on that."""
    from nightshift.common.errors import LedgerAbandoned
    from nightshift.producer.advice.advice import nobody_works
    from nightshift.producer.views.progress import follow

    while True:
        with context.opened() as (ledger, here):
            job = context.find_job(ledger, reference)
            if here.nobody and job.closed_at is None and job.state != "paused":
                raise BadInput(f"no worker runs job {job.id}: {nobody_works(here, job)}")
            try:
                ended = follow(ledger, job.id, console, until_idle=until_idle, here=here).job
            except LedgerAbandoned:
                # The `run` has ended, and perhaps the job: this command or another one starts the server again.
                continue
            yield ledger, ended, here
            return


def status(
    job: context.SomeJob = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only jobs that are at work, waits, done, failed, paused or cancelled.",
            autocompletion=proposals.standings,
        ),
    ] = None,
    needs_person: Annotated[
        bool, typer.Option("--needs-person", help="Only jobs that do not go on by themselves.")
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Say where a job stands, or all of them."""
    from nightshift.common.ledger.engines import loads
    from nightshift.common.ledger.fleet import outages, workers
    from nightshift.common.ledger.jobs import answer_counts
    from nightshift.common.ledger.jobs import jobs as ledger_jobs
    from nightshift.common.ledger.queries.standings import Filter
    from nightshift.producer.views import facts, rates, standings, tables, watching
    from nightshift.producer.views.deadlines import with_deadlines
    from nightshift.producer.views.last_sign import with_load_log

    wanted = Filter(word=standings.word(state), needs_person=needs_person)
    if job is not None and (state or needs_person):
        raise BadInput("--state and --needs-person choose among all jobs: leave JOB out")
    with context.opened(context.silent_settings()) as (ledger, here):
        number = None if job is None else context.find_job(ledger, job).id
        with ledger.transaction() as connection:
            if number is None:
                rows = with_deadlines(connection, standings.chosen(connection, wanted, here))
            else:
                rows = [facts.read(connection, number, here)]
            shown = None if number is None else with_load_log(connection, rows[0], here)
            living, away = workers.status(connection), outages.listed(connection, number)
            aside = loads.set_aside(connection)
            off = None if number is None else ledger_jobs.backing_off(connection, number)
            seen = None if number is None else watching.watching(connection, number)
            answers = None if number is None else answer_counts.of_job(connection, number)
    if as_json:
        objects = [rates.as_json(row) for row in rows]
        if seen is not None:
            objects[0] = {**objects[0], "watch": seen.as_json()}
        if answers is not None:
            objects[0] = {**objects[0], **answers.as_json()}
        if number is not None:
            objects[0] = {**objects[0], "outages": [each.as_json() for each in away]}
        context.print_json(objects if number is None else objects[0])
    elif shown is None:
        context.console().print(tables.overview(rows, living, aside, away))
    else:
        said = [] if seen is None else watching.lines(seen)
        context.console().print(tables.status(shown, living, aside, off, said, here, away))


def jobs(*, as_json: context.AsJson = False) -> None:
    """List the jobs, newest first."""
    from rich.console import Group

    from nightshift.common.ledger.fleet import outages
    from nightshift.common.ledger.queries import job_pace
    from nightshift.producer.views import rates, tables
    from nightshift.producer.views.deadlines import with_deadlines
    from nightshift.producer.views.standings import with_standings

    with (
        context.opened(context.silent_settings()) as (ledger, here),
        ledger.transaction() as connection,
    ):
        rows = with_deadlines(connection, job_pace.listed(connection))
        rows = with_standings(connection, rows, here)
        away = tables.away(outages.listed(connection))
    if as_json:
        context.print_json([rates.as_json(row) for row in rows])
    else:
        context.console().print(Group(tables.JobTable(rows), *away) if rows else "no jobs yet")


def errors(
    job: context.JobName,
    kind: Annotated[
        str | None,
        typer.Option(help="Only rows that failed like this.", autocompletion=proposals.error_kinds),
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 20,
    *,
    as_json: context.AsJson = False,
) -> None:
    """Show the rows that failed, and why."""
    from nightshift.producer import closed_jobs
    from nightshift.producer.views import rates, row_tables

    with context.ledger_of() as ledger:
        found = context.find_job(ledger, job)
        kinds, rows = closed_jobs.errors(ledger, found, kind=kind, limit=count)
    if kind is not None and kind not in kinds:
        context.row_error_kind(kind)
    if as_json:
        shown = [rates.plain(row) for row in rows]
        context.print_json({"job": found.id, "kinds": kinds, "rows": shown})
    else:
        context.console().print(row_tables.errors(rows, kinds))


def sample(
    job: context.JobName,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many rows.")] = 20,
    seed: context.Seed = 0,
    errors_only: Annotated[
        bool, typer.Option("--errors", help="Draw among the rows that failed.")
    ] = False,
    doubt: Annotated[
        bool,
        typer.Option(
            "--doubt", help="Those of which the model was least sure, the least sure first."
        ),
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
    from nightshift.producer.results.doubt import doubtful
    from nightshift.producer.results.sample import sample as draw_sample
    from nightshift.producer.views import row_tables, versions

    if html is not None and as_json:
        raise BadInput("--html writes a page and --json lines: give one of them")
    if doubt and errors_only:
        raise BadInput("--doubt shows answers and --errors rows without one: give one of them")
    settings = context.command_settings()
    if html is not None:
        context.allowed_file(settings, html)
    with context.ledger_of(settings) as ledger:
        found = context.find_job(ledger, job)
        if doubt:
            drawn = doubtful(ledger, found, count)
        else:
            drawn = draw_sample(ledger, found, count, seed, errors_only=errors_only)
        if html is not None:
            sample_page.write(ledger, found, drawn, html)
        with ledger.transaction() as connection:
            by_version = versions.versions(connection, found.id).text
    if html is not None:
        typer.echo(f"{counted(len(drawn.rows), 'row')} in {html}")
    elif as_json:
        typer.echo(sample_page.lines(drawn), nl=False)
    else:
        context.console().print(row_tables.sample_table(drawn.rows, drawn.inputs, drawn.outputs))
    for note in filter(None, (drawn.note, by_version)):
        typer.echo(f"nightshift: {note}", err=True)
