"""The `nightshift` command: every command with its panel of `--help`, in the order shown there.

What a command needs is imported when it runs, so that `nightshift --help` answers at once.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nightshift.common.errors import NightshiftError, Permanent, Retryable
from nightshift.common.exit_codes import ExitCode
from nightshift.common.text import one_line
from nightshift.producer import wings
from nightshift.producer.cli import (
    completion,
    control,
    fleet,
    inspect,
    look,
    results,
    run,
    schema,
)
from nightshift.producer.cli.command import Command

GARBAGE_OBJECTS = 50_000
"""New objects after which Python looks for garbage; 700 is its own number."""

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (run.run, run.submit, look.wait, results.collect),
    "Look": (
        look.status,
        look.watch,
        inspect.top,
        look.jobs,
        inspect.workers,
        inspect.history,
        look.errors,
        look.sample,
        inspect.logs,
        results.verify,
    ),
    "Control": (
        control.pause,
        control.resume,
        control.cancel,
        control.set_,
        control.retry,
        control.release,
        control.delete,
    ),
    "Fleet": (
        fleet.drain,
        fleet.cordon,
        fleet.uncordon,
        fleet.gc,
        fleet.migrate,
        fleet.reaper,
        fleet.alive,
    ),
    "Shell and editor": (completion.completion, schema.schema),
}
"""The commands of the core; wings add theirs."""

FIRST_WEEK = ("init", "run", "status", "sample", "errors", "verify", "collect", "submit")
"""What a first week needs, in the order in which people need it: a spec, its run, a look at the answers and at
what failed, the proof, the file, and the fleet. `--help` shows these before the other panels.
"""

FIRST_PANEL = "First week"

HELP_COLUMNS = 100
"""Widest `--help`: with it the first sentence of each command has one line."""


class OneSentence(TyperGroup):
    """Prints the sentence of a NightshiftError; with `--debug` the error is raised instead. `--help`
    lists the commands by panel, without Rich, whose import takes longer than most commands.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The first sentence of each command, below the name of its panel."""
        for panel in (FIRST_PANEL, *PANELS):
            lines = [
                (name, (command.help or "").split("\n\n")[0].replace("\n", " "))
                for name, command in self.commands.items()
                if getattr(command, "rich_help_panel", None) == panel and not command.hidden
            ]
            with formatter.section(panel):
                formatter.write_dl(lines)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; Ctrl-C ends it without a message."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from nightshift.common.validation import first_mistake

            if isinstance(error.__cause__, ValidationError):
                error.message = first_mistake(error.__cause__)[1]
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(ExitCode.INTERRUPTED) from error
        except NightshiftError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"nightshift: {one_line(str(error))}", err=True)
            refused = isinstance(error, Permanent | Retryable)
            raise typer.Exit(ExitCode.REFUSED if refused else ExitCode.BROKEN) from error


app = typer.Typer(
    cls=OneSentence,
    add_completion=False,
    rich_markup_mode=None,  # see OneSentence
    no_args_is_help=True,
    context_settings={"max_content_width": HELP_COLUMNS},
    pretty_exceptions_enable=False,
    help="Run a model over millions of rows: no row lost, none twice.",
)


def commands() -> list[Command]:
    """Every command in the order shown in `--help`: those of the first week, then panel by panel."""
    found = [Command(panel, run) for panel, runs in PANELS.items() for run in runs]
    for of_wing in wings.offered("commands"):
        for command in of_wing:
            names = [each.called if each.panel == command.panel else "" for each in found]
            found.insert(names.index(command.before) if command.before else len(found), command)
    first = [replace(each, panel=FIRST_PANEL) for each in found if each.called in FIRST_WEEK]
    first.sort(key=lambda each: FIRST_WEEK.index(each.called))
    return first + [each for each in found if each.called not in FIRST_WEEK]


for command in commands():
    function = command.function
    if isinstance(function, typer.Typer):
        app.add_typer(function, name=command.called, rich_help_panel=command.panel)
    else:
        app.command(command.called, rich_help_panel=command.panel)(function)


app.command(completion.ASK, hidden=True, context_settings={"ignore_unknown_options": True})(
    completion.ask
)


def _show_version(context: typer.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:  # nor for a proposal
        from nightshift.common.provenance import code_version

        typer.echo(f"nightshift {code_version()}")
        raise typer.Exit


@app.callback()
def everywhere(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which code this is.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Nothing to prepare: `OneSentence` reads the flag."""


def main() -> None:
    """Runs the command line; `prog_name` because `python -m` would name the file."""
    # A command makes objects that stay, modules above all. To look through all of them for garbage, now and again
    # and at the end of the process, took a third of the time of `nightshift status`.
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
    try:
        app(prog_name="nightshift")
    finally:
        # DuckDB counts what of its own lives on at the end, and prints that on stderr.
        if "duckdb" not in sys.modules:
            gc.freeze()
