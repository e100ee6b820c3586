"""The `nightshift` command: every command with its panel of `--help`, in the order shown there.

What a command needs is imported when it runs, so that `nightshift --help` answers at once.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nightshift.common.errors import NightshiftError, Permanent, Retryable
from nightshift.common.text import one_line
from nightshift.producer.cli import control, look, results, run

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (run.run, run.estimate, run.submit, look.wait, results.collect, results.judge),
    "Look": (look.status, look.watch, look.jobs, look.errors, look.sample, results.verify),
    "Control": (control.pause, control.resume, control.cancel, control.retry, control.unpin),
    "Fleet": (control.migrate, control.reaper, control.alive),
}

EXIT_REFUSED = 2
"""The user can do something about the error."""

EXIT_BROKEN, EXIT_INTERRUPTED = 3, 130


class OneSentence(TyperGroup):
    """Prints the sentence of a NightshiftError; with `--debug` the error is raised instead."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; Ctrl-C ends it without a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except NightshiftError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"nightshift: {one_line(str(error))}", err=True)
            refused = isinstance(error, Permanent | Retryable)
            raise typer.Exit(EXIT_REFUSED if refused else EXIT_BROKEN) from error


app = typer.Typer(
    cls=OneSentence,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run a model over millions of rows: no row lost, none twice.",
)

for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


@app.callback()
def everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Nothing to prepare: `OneSentence` reads the flag."""


def main() -> None:
    """Runs the command line; `prog_name` because `python -m` would name the file."""
    app(prog_name="nightshift")
