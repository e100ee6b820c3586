"""Commands that change a job, pause, resume, cancel, retry and unpin, and those that keep a fleet:
migrate, reaper, alive.
"""

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context

if TYPE_CHECKING:
    from nightshift.common.ledger import Connection


def pause(job: context.JobName) -> None:
    """Stop a job from taking more work; batches that are under way end as usual."""
    from nightshift.common.ledger import jobs

    _change(job, jobs.pause, "is paused; `nightshift resume {id}` goes on")


def resume(
    job: context.JobName,
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


def cancel(job: context.JobName) -> None:
    """End a job for good; parts that are written stay."""
    from nightshift.common.ledger import jobs

    _change(job, jobs.cancel, "is cancelled")


def retry(
    job: context.JobName,
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
    wanted = context.row_error_kind(kind)
    if not failed and not dead:
        raise BadInput("say which rows run again: --failed (with --kind, if only some) or --dead")
    if wanted is not None and not failed:
        raise BadInput("--kind chooses among the rows of --failed: add it")
    from nightshift.producer import retry as retry_job
    from nightshift.producer.connect import open_ledger

    settings = context.command_settings()
    with open_ledger(settings) as (ledger, alone):
        found = context.find_job(ledger, job)
        done = retry_job.retry(ledger, found, failed=failed, dead=dead, kind=wanted)
    # The `run` that keeps an embedded ledger up may be one of another job.
    nobody = alone or (settings.database_url is None and done.reopened)
    typer.echo(retry_job.summary(found, done, nobody_works=nobody))


def unpin(job: context.JobName) -> None:
    """Let the model of a job be loaded at another revision than that of its first load.

    For a revision that is gone, or a model that moved on under a branch name. Holds for every job
    with the same engine and pool. Refused while a worker has or loads the model.
    """
    from nightshift.common.ledger import loads

    with context.ledger_of() as ledger:
        found = context.find_job(ledger, job)
        with ledger.transaction() as connection:
            revision = loads.release_revision(connection, found.spec.pool, found.spec.engine_key)
    name = f"job {found.id} ({found.spec.name})"
    typer.echo(f"{name} is not held to revision {revision} any more; its next load decides")


def _change(reference: str, change: "Callable[[Connection, int], object]", outcome: str) -> None:
    """Changes the job in one transaction, and prints what became of it."""
    with context.ledger_of() as ledger:
        job = context.find_job(ledger, reference)
        with ledger.transaction() as connection:
            change(connection, job.id)
    typer.echo(f"job {job.id} ({job.spec.name}) {outcome.format(id=job.id)}")


def migrate() -> None:
    """Bring the tables of the ledger up to this code."""
    from nightshift.common.ledger import schema
    from nightshift.producer.connect import open_ledger

    with open_ledger(context.command_settings(), checked=False) as (ledger, _):
        found = schema.migrate(ledger)
        schema.check(ledger)
        newer = f", newer than the {schema.SCHEMA:04} of this code, which may use it"
        typer.echo(
            f"{ledger.place} is at migration {found:04}{newer if found > schema.SCHEMA else ''}"
        )


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
    from nightshift.producer.connect import open_ledger
    from nightshift.producer.reaper import loop

    state = None if settings.run_dir is None else run_state.claim(settings.run_dir, "reaper")
    with open_ledger(settings, connections=loop.CONNECTIONS) as (ledger, _):
        loop.run(ledger, settings, stop, state)


def alive() -> None:
    """Say whether the reaper of NIGHTSHIFT_RUN_DIR makes its rounds; for a liveness probe."""
    from nightshift.producer.reaper import alive as probe

    raise typer.Exit(probe.answer())
