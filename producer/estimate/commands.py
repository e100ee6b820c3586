"""The command that says what a job would take before it runs: estimate."""

from typing import Annotated

import typer

from nightshift.common.exit_codes import ExitCode
from nightshift.producer.cli import context
from nightshift.producer.cli.flags import Flags, takes_flags
from nightshift.producer.cli.job_spec import job_spec
from nightshift.producer.cli.run import PilotRows, Target


@takes_flags
def estimate(
    target: Target,
    *,
    flags: Flags,
    pilot: PilotRows = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Engines at work; else those that live now.")
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Say what a job would take: prompts, hours, money, and when it would be over.

    Prompts are counted in a random sample of 1,000 rows. Speed and answers come from jobs with
    the same engine in this ledger, or from --pilot, which runs a sample now: on the workers of the
    pool where some live, else on this machine. Nothing else is run, and nothing is submitted.
    """
    from nightshift.producer.estimate import estimate_report
    from nightshift.producer.estimate.pilot_place import run_estimate

    spec, settings = job_spec(target, flags), context.command_settings()
    messages = context.console(stderr=as_json)
    made = run_estimate(spec, settings, messages, pilot_rows=pilot, workers=workers)
    if made is None:
        raise typer.Exit(ExitCode.NOT_FINISHED)
    if as_json:
        context.print_json(estimate_report.as_json(made))
    else:
        context.console().print(estimate_report.render(made))
