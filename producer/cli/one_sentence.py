"""How a command ends that fails: one sentence and an exit code, not a traceback."""

from typing import Any

import typer
from typer.core import TyperGroup

from nightshift.common.errors import NightshiftError, Permanent, Retryable
from nightshift.common.text import one_line

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
