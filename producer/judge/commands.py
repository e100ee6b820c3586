"""The command that lets a second job judge the answers of a first one: judge."""

from pathlib import Path
from typing import Annotated

import typer

from nightshift.producer.cli import context


def judge(
    job: context.JobName,
    spec: Annotated[Path, typer.Option(help="The judge's job spec, without an input.")],
    count: Annotated[
        int | None, typer.Option("--sample", min=1, help="Judge this many rows, not all.")
    ] = None,
    seed: context.Seed = 0,
    column: Annotated[
        str | None, typer.Option(help="Column of the judge's output, or column.property.")
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="What words are worth, as in good=1,bad=0.")
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Let a second job judge the answers of a finished one; says the score and its error.

    Runs here like `run`, or on the fleet that NIGHTSHIFT_DATABASE_URL names. Exits 0 when every
    row has a score, 1 when some have none, 3 when the judge did not come to its end.
    """
    from nightshift.producer.judge.judge import judge as judge_job
    from nightshift.producer.judge.scores import Scale, parse_words
    from nightshift.producer.judge.verdict import render

    scale = Scale(column, parse_words(scores))
    messages = context.console(stderr=as_json)
    verdict = judge_job(
        context.command_settings(), job, spec, scale, count=count, seed=seed, console=messages
    )
    if as_json:
        context.print_json(verdict.as_json())
    else:
        messages.print(render(verdict))
    raise typer.Exit(verdict.exit_code)
