"""Commands about what a job wrote: collect, verify."""

from typing import Annotated, Literal

import typer

from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.text import counted, one_line, plural
from nightshift.producer.cli import context


def collect(
    job: context.JobName,
    to: Annotated[
        str, typer.Option("--to", help="The file: .parquet, .jsonl, .csv, or .npy for vectors.")
    ],
    partial: Annotated[bool, typer.Option(help="Take what a job has so far.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    manifest: Annotated[
        bool,
        typer.Option(
            "--manifest", help="The table of its parts instead; .parquet, .jsonl or .csv."
        ),
    ] = False,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--with-input",
            metavar="COLUMNS",
            help="Columns of the input beside the output, separated by commas.",
        ),
    ] = None,
    as_format: Annotated[
        Literal["openai"] | None,
        typer.Option(
            "--format",
            help="openai: result lines of the OpenAI batch API, and x.errors.jsonl beside x.jsonl.",
        ),
    ] = None,
) -> None:
    """Write the output of a job as one file, in the order of the dataset."""
    settings = context.command_settings()
    to = context.allowed_file(settings, to)
    if manifest and (partial or as_format is not None):
        raise BadInput(
            f"{'--partial' if partial else '--format'} is for the rows of a job, and --manifest "
            "lists its parts as they are: leave one out"
        )
    if inputs is not None and (manifest or as_format is not None):
        raise BadInput(
            f"--with-input is for the rows of a job, not for {'--manifest' if manifest else '--format'}"
        )
    columns = [name.strip() for name in (inputs or "").split(",") if name.strip()]
    from nightshift.producer.results import manifest_table, openai_batch_results
    from nightshift.producer.results.collect import collect as collect_rows
    from nightshift.producer.results.vectors import ids_uri

    with context.ledger_of(settings) as ledger:
        found = context.find_job(ledger, job)
        if manifest:
            parts, rows_left = manifest_table.write(ledger, found, to, force=force)
            typer.echo(f"{counted(parts, 'part')} in {to}")
            if rows_left:
                left = (
                    f"{counted(rows_left, 'row')} {plural(rows_left, 'is', 'are')} in no part yet"
                )
                typer.echo(f"job {found.id} is {found.state}: {left}")
        elif as_format == "openai":
            done = openai_batch_results.collect(ledger, found, to, partial=partial, force=force)
            typer.echo(openai_batch_results.summary(done))
        else:
            rows = collect_rows(
                ledger,
                found,
                to,
                partial=partial,
                force=force,
                inputs=columns,
                remark=lambda text: typer.echo(f"nightshift: {one_line(text)}", err=True),
            )
            beside = f", their ids in {ids_uri(to)}" if to.lower().endswith(".npy") else ""
            typer.echo(f"{counted(rows, 'row')} in {to}{beside}")


def verify(job: context.JobName, *, as_json: context.AsJson = False) -> None:
    """Check from the outside that every row is there exactly once; exits 1 with findings."""
    from nightshift.producer.verify.verify import checks
    from nightshift.producer.views import row_tables

    output, found = context.console(), []
    with context.ledger_of() as ledger:
        checked = context.find_job(ledger, job)
        for check in checks(ledger, checked):
            messages = [problem.message for problem in check.problems]
            found.append({"check": check.name, "summary": check.summary, "problems": messages})
            if not as_json:
                output.print(row_tables.check(check.name, check.summary, messages))
    if as_json:
        context.print_json({"job": checked.id, "checks": found})
    if any(check["problems"] for check in found):
        raise typer.Exit(ExitCode.FINDINGS)
