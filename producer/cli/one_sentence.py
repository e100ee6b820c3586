"""How a command ends that cannot do its work: one sentence, and an exit code that says whose turn
it is.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from nightshift.common.errors import NightshiftError, Permanent, Retryable
from nightshift.common.text import one_line

EXIT_REFUSED, EXIT_BROKEN, EXIT_INTERRUPTED = 2, 3, 130


class OneSentence(TyperGroup):
    """Ends every command that fails on purpose with one sentence; `--debug` lets it fly."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; Ctrl-C ends it quietly."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except NightshiftError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"nightshift: {one_line(str(error))}", err=True)
            mendable = isinstance(error, Permanent | Retryable)
            raise typer.Exit(EXIT_REFUSED if mendable else EXIT_BROKEN) from error
