"""Commands that look into the fleet: workers, top, history, logs."""

from typing import Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context, proposals

Count = Annotated[int, typer.Option("-n", min=0, help="How many, the newest; 0 shows all.")]


def workers(
    pool: Annotated[
        str | None, typer.Option(help="Only this pool.", autocompletion=proposals.pools)
    ] = None,
    *,
    as_json: context.AsJson = False,
) -> None:
    """Show every slot of every machine: its GPU, its engine, its job and its speed."""
    from nightshift.producer.views import fleet_views

    with context.ledger_of() as ledger:
        seen = fleet_views.workers(ledger, pool)
    if as_json:
        context.print_json(seen.as_json())
    else:
        context.console().print(seen.table())


def top(*, as_json: context.AsJson = False) -> None:
    """Show the whole fleet, live: jobs, pools, machines, rates, GPUs; Ctrl-C ends.

    One frame where there is no terminal.
    """
    from nightshift.producer.views import fleet_views

    with context.opened() as (ledger, here):
        if as_json:
            context.print_json(fleet_views.fleet(ledger, here).as_json())
        else:
            fleet_views.top(ledger, context.console(), here)


def history(
    job: context.JobName,
    count: Count = 50,
    batch: Annotated[
        int | None, typer.Option(help="Only the batches of this number, as parts have it.")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Only leases with this outcome: done, split, released, failed, lost or running.",
            autocompletion=proposals.outcomes,
        ),
    ] = None,
    *,
    as_json: context.AsJson = False,
) -> None:
    """Show each attempt of a job: when, where, how it ended and why."""
    from nightshift.common.states import Outcome
    from nightshift.producer.views import history as views

    if outcome is not None and outcome not in (*Outcome, "running"):
        raise BadInput(f"--outcome {outcome!r} is not one of {', '.join(Outcome)}, running")
    with context.ledger_of() as ledger:
        found = context.find_job(ledger, job)
        seen = views.history(ledger, found, limit=count or None, outcome=outcome, seq=batch)
    if as_json:
        context.print_json(seen.as_json())
    else:
        context.console().print(seen.table())


def logs(
    job: context.SomeJob = None,
    count: Count = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines, too, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what the reaper and the worker of `nightshift run` in this folder wrote."""
    from nightshift.producer.local import log_files

    settings = context.command_settings()
    if settings.database_url is not None:
        raise BadInput(
            "the processes of a fleet write to their own standard error: `kubectl logs`, `docker "
            "compose logs` or `journalctl` show it; `nightshift history JOB` shows each attempt with "
            "its error"
        )
    job_id = None
    if job is not None:
        with context.ledger_of(settings) as ledger:
            job_id = context.find_job(ledger, job).id
    for line in log_files.lines(settings.home, job_id, count, follow=follow):
        typer.echo(line)
