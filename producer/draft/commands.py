"""The command that drafts a spec: init."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.common.text import counted
from nightshift.producer.cli import context

SCHEMA = "job.schema.json"
"""Where people keep what `nightshift schema` prints, beside their specs."""


def init(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file, a directory, a glob or a table, as input.uri of a spec.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="SPEC", help="The spec; a file that is there stays.")
    ] = Path("job.yaml"),
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Hub name or folder of a model, for vLLM.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Jinja template over the row's columns.")
    ] = None,
    callable: Annotated[
        str | None,
        typer.Option(help="module:name of a Python function, instead of a model."),
    ] = None,
) -> None:
    """Look at an input and write a commented spec for it, to be filled in.

    The first 1,000 rows are read: their columns stand in comments, with types and examples. The id, and the
    column that the prompt is about, are guesses, and marked as such. Nothing is run, no ledger is needed, and no
    file is replaced.
    """
    from nightshift.producer.draft import to_fill_in
    from nightshift.producer.draft.look import look
    from nightshift.producer.draft.place import check_target, free_output, write_new
    from nightshift.producer.draft.written import Asked, draft
    from nightshift.producer.submit.names import job_name

    if callable is not None and (given := "--model" if model else "--prompt" if prompt else ""):
        raise BadInput(f"--callable runs a Python function and {given} is for models: give one")
    settings = context.command_settings()
    context.allowed_file(settings, str(to))
    check_target(to, source)
    seen = look(source, settings)
    name = job_name(source)
    schema = SCHEMA if (to.parent / SCHEMA).is_file() else None
    asked = Asked(source, name, free_output(name, source), model, prompt, callable, schema)
    spec = write_new(to, draft(asked, seen))
    columns = counted(len(seen.columns), "column")
    typer.echo(f"wrote {to}: {columns}; guesses from {counted(seen.rows, 'row')} are marked")
    if missing := to_fill_in.places(spec):
        typer.echo(f"fill in {' and '.join(missing)}, look at the guesses, then:")
    spec_file = shlex.quote(str(to))
    if callable is None:
        typer.echo(f"  nightshift estimate {spec_file}")
    else:  # an estimate rests on rows that ran
        typer.echo(f"  nightshift run {spec_file} --limit 50 --out try/")
    typer.echo(f"  nightshift run {spec_file}")
