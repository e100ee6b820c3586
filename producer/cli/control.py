"""Commands that change a job: pause, resume, cancel, set, retry, release, delete.

Each answers in one line what changed, or with --json, and leaves a row in the audit log.
"""

from typing import Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context, proposals


def pause(job: context.JobName, *, as_json: context.AsJson = False) -> None:
    """Stop a job from taking more work; batches that are under way end as usual."""
    from nightshift.producer.control import job_moves

    with context.opened() as (ledger, here):
        answer = job_moves.pause(ledger, context.find_job(ledger, job), here)
    context.print_answer(answer, as_json=as_json)


def resume(
    job: context.JobName,
    *,
    budget: Annotated[
        float | None, typer.Option(help="Money that it may spend in all, as limits.budget.")
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Let a paused job go on."""
    from nightshift.producer.control import job_moves

    with context.opened() as (ledger, here):
        answer = job_moves.resume(ledger, context.find_job(ledger, job), budget, here)
    context.print_answer(answer, as_json=as_json)


def cancel(job: context.JobName, *, as_json: context.AsJson = False) -> None:
    """End a job for good; parts that are written stay."""
    from nightshift.producer.control import job_moves

    with context.ledger_of() as ledger:
        answer = job_moves.cancel(ledger, context.find_job(ledger, job))
    context.print_answer(answer, as_json=as_json)


def set_(
    job: context.JobName,
    *,
    priority: Annotated[str | None, typer.Option(metavar="N", help="Higher goes first.")] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Batches that are under way end where they are.",
            autocompletion=proposals.pools,
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(metavar="X", help="Share beside jobs of equal priority; 1 unless set."),
    ] = None,
    max_parallel: Annotated[
        str | None, typer.Option(metavar="N", help="Batches under way at once, or none.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="MONEY", help="What it may spend in all, or none.")
    ] = None,
    finish_by: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="06:00, a date, a duration such as 8h, or none."),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Branch, tag or commit of its model, or none. Rows with an answer keep the answer.",
        ),
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Change a job under way: its priority, pool, weight, limits or model revision.

    Batches that wait follow within a second; those under way end as they began. The job keeps its
    identity: the spec that it was submitted with still finds it.
    """
    from nightshift.producer.control import job_settings

    given = {
        "priority": priority,
        "pool": pool,
        "weight": weight,
        "max_parallel": max_parallel,
        "budget": budget,
        "finish_by": finish_by,
        "revision": revision,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise BadInput("say what changes, such as --priority 10: see `nightshift set --help`")
    with context.ledger_of() as ledger:
        answer = job_settings.change(ledger, context.find_job(ledger, job), wanted)
    context.print_answer(answer, as_json=as_json)


def retry(
    job: context.JobName,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Every row that failed.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="What failed in dead batches.")] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Of --failed, rows that failed like this.", autocompletion=proposals.error_kinds
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Of --failed, rows whose error says this, numbers aside."
        ),
    ] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Rows whose part is gone from the output directory.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Of --lost, also where the whole directory is gone.")
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Run failed rows again, or with --lost rows whose part is gone; answers are kept.

    The new answers go into the parts of the old ones. Until then the rows count as open and are
    not listed as failed; if the job is cancelled before, they keep their old error. Rows of dead
    batches (kind batch_dead) are failed rows too. The manifest goes, and comes back at the end.
    """
    wanted = context.row_error_kind(kind)
    chooses = "--kind" if wanted is not None else "--message" if message is not None else ""
    if lost and (failed or dead or chooses):
        raise BadInput("--lost is a retry of its own: leave the other options out")
    if yes and not lost:
        raise BadInput("--yes is for --lost, where the whole directory is gone")
    if lost:
        _retry_lost(job, sure=yes, as_json=as_json)
        return
    if not failed and not dead:
        raise BadInput(
            "say which rows run again: --failed (with --kind, if only some), --dead or --lost"
        )
    if chooses and not failed:
        raise BadInput(f"{chooses} chooses among the rows of --failed: add it")
    if message is not None and dead:
        raise BadInput("--message chooses among the rows of --failed: leave --dead out")
    from nightshift.common.ledger.queries import failed_rows
    from nightshift.producer import retry as retry_job
    from nightshift.producer.control.answer import Answer

    with context.opened() as (ledger, here):
        found = context.find_job(ledger, job)
        group = None
        if message is not None:
            with ledger.transaction() as connection:
                group = failed_rows.group_of(connection, message)
        done = retry_job.retry(
            ledger, found, failed=failed, dead=dead, kind=wanted, group=group, overtake=dead
        )
    figures = {"rows": done.rows, "batches": done.batches, "reopened": done.reopened}
    then = retry_job.summary(found, done, here)
    context.print_answer(
        Answer("retry", found.label, found.id, then=then, facts=figures), as_json=as_json
    )


def _retry_lost(job: str, *, sure: bool, as_json: bool) -> None:
    from nightshift.producer.control import lost_parts

    with context.opened() as (ledger, here):
        found = context.find_job(ledger, job)
        answer = lost_parts.redo(ledger, found, sure=sure, here=here)
    context.print_answer(answer, as_json=as_json)


def release(
    job: context.JobName,
    *,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="A batch that a worker holds, as `history` numbers it."),
    ] = None,
    revision: Annotated[
        bool, typer.Option("--revision", help="The revision of the first load of the model.")
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Release what a worker or a first load holds: a batch, or the revision of a model.

    A released batch may be claimed by another worker; its old owner drops the rows. A released revision is
    for one that is gone, or a model that moved on under a branch name: the next load decides, for every job
    with the same engine and pool. Refused while a worker has or loads the model.
    """
    if (batch is None) != revision:
        raise BadInput("say what is released: --batch N (see `nightshift history`) or --revision")
    from nightshift.producer.control import batch_leases, job_moves

    with context.ledger_of() as ledger:
        found = context.find_job(ledger, job)
        if batch is None:
            answer = job_moves.unpin(ledger, found)
        else:
            answer = batch_leases.release(ledger, found, batch)
    context.print_answer(answer, as_json=as_json)


def delete(
    job: context.JobName,
    *,
    output: Annotated[
        bool,
        typer.Option(
            "--output", help="Also its files in the output directory, and nothing else there."
        ),
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Delete a job that is over from the ledger; without --output its output stays.

    Who deleted it stays in the audit log. A command that was cut off is given again, and goes on.
    """
    from nightshift.producer.control import deletion

    settings = context.command_settings()
    with context.ledger_of(settings) as ledger:
        answer = deletion.delete(ledger, context.find_job(ledger, job), settings, output=output)
    context.print_answer(answer, as_json=as_json)
