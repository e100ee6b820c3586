"""The command that checks what a fleet stands on: doctor."""

import typer

from nightshift.common.exit_codes import ExitCode
from nightshift.producer.cli import context


def doctor(*, as_json: context.AsJson = False) -> None:
    """Check database, broker, storage, clock, GPUs and versions; exits 1 with findings."""
    from nightshift.producer.doctor import checks

    found = []
    for check in checks.examine(context.command_settings()):
        found.append(check)
        if not as_json:
            then = f": {check.advice}" if check.advice else ""
            typer.echo(f"{check.health:<6}{check.name:<12}{check.said}{then}")
    if as_json:
        context.print_json(
            [
                {
                    "check": each.name,
                    "health": str(each.health),
                    "said": each.said,
                    "advice": each.advice or None,
                }
                for each in found
            ]
        )
    if any(each.health is checks.Health.WRONG for each in found):
        raise typer.Exit(ExitCode.FINDINGS)
