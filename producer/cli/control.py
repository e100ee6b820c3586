"""Commands that change a job: pause, resume, cancel, retry."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli.context import (
    JobName,
    command_settings,
    find_job,
    ledger_of,
    row_error_kind,
)

if TYPE_CHECKING:
    from nightshift.common.ledger import Connection


def pause(job: JobName) -> None:
    """Stop a job from taking more work; batches that are under way end as usual."""
    from nightshift.common.ledger import jobs

    _change(job, jobs.pause, "is paused; `nightshift resume {id}` goes on")


def resume(
    job: JobName,
    budget: Annotated[
        float | None, typer.Option(help="Money that it may spend in all, as limits.budget.")
    ] = None,
) -> None:
    """Let a paused job go on."""
    from nightshift.common.ledger import jobs, spending

    def go_on(connection: "Connection", job_id: int) -> None:
        if budget is not None:
            spending.set_budget(connection, job_id, budget)
        spending.refuse_spent(connection, job_id)
        jobs.resume(connection, job_id)

    _change(job, go_on, "goes on")


def cancel(job: JobName) -> None:
    """End a job for good; parts that are written stay."""
    from nightshift.common.ledger import jobs

    _change(job, jobs.cancel, "is cancelled")


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
    wanted = row_error_kind(kind)
    if not failed and not dead:
        raise BadInput("say which rows run again: --failed (with --kind, if only some) or --dead")
    if wanted is not None and not failed:
        raise BadInput("--kind chooses among the rows of --failed: add it")
    from nightshift.producer import retry as retry_job
    from nightshift.producer.connect import open_ledger

    settings = command_settings()
    with open_ledger(settings) as opened:
        found = find_job(opened.ledger, job)
        done = retry_job.retry(opened.ledger, found, failed=failed, dead=dead, kind=wanted)
    # The `run` that keeps an embedded ledger up may be one of another job.
    nobody = opened.alone or (settings.database_url is None and done.reopened)
    typer.echo(retry_job.summary(found, done, nobody_works=nobody))


def _change(reference: str, change: "Callable[[Connection, int], object]", outcome: str) -> None:
    """Changes the job in one transaction, and prints what became of it."""
    with ledger_of(command_settings()) as ledger:
        job = find_job(ledger, reference)
        with ledger.transaction() as connection:
            change(connection, job.id)
    typer.echo(f"job {job.id} ({job.spec.name}) {outcome.format(id=job.id)}")
