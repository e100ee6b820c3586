"""What commands share: their settings, ledger, job and console, and arguments that many take."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import proposals

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.ledger import Ledger
    from nightshift.common.ledger.jobs.jobs import Job
    from nightshift.common.settings import Settings
    from nightshift.common.states import RowErrorKind
    from nightshift.producer.advice.here import Here
    from nightshift.producer.control.answer import Answer

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Number or name of a job.",
        show_default=False,
        autocompletion=proposals.jobs,
    ),
]
SomeJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Number or name; all jobs without one.",
        autocompletion=proposals.jobs,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
Seed = Annotated[int, typer.Option(help="Another seed draws other rows.")]

PIPE_COLUMNS = 160
"""Width of a table that is written to a file or a pipe."""


def command_settings() -> "Settings":
    """Settings of a command that people look at: it logs warnings only, unless the level is set."""
    from nightshift.common import logs
    from nightshift.common.settings import load_settings

    settings = load_settings()
    quiet = {} if "log_level" in settings.model_fields_set else {"log_level": "warning"}
    logs.configure(settings.model_copy(update=quiet))
    return settings


def silent_settings() -> "Settings":
    """Settings of a command on whose way nothing writes a line of a log: structlog, which is not imported,
    would take a tenth of `nightshift status`.
    """
    from nightshift.common.settings import load_settings

    return load_settings()


@contextmanager
def ledger_of(settings: "Settings | None" = None) -> Iterator["Ledger"]:
    """The ledger for the time of one command, whoever keeps it up."""
    with opened(settings) as (ledger, _):
        yield ledger


@contextmanager
def opened(settings: "Settings | None" = None) -> Iterator[tuple["Ledger", "Here"]]:
    """The ledger for the time of one command, and who works on it."""
    from nightshift.producer.advice.here import here
    from nightshift.producer.connect import open_ledger

    settings = settings or command_settings()
    with open_ledger(settings) as (ledger, alone):
        yield ledger, here(settings, alone=alone)


def print_json(value: object) -> None:
    """What a command found, for machines."""
    typer.echo(json.dumps(value, indent=2, default=str))


def console(*, stderr: bool = False) -> "Console":
    """Where a command prints its tables: as wide as the terminal, if there is one."""
    from nightshift.producer.cli.console import SafeConsole

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return SafeConsole(highlight=False, stderr=stderr, width=None if is_terminal else PIPE_COLUMNS)


def find_job(ledger: "Ledger", reference: str) -> "Job":
    """The job with this number or name; BadInput when there is none."""
    from nightshift.common.ledger.jobs import jobs

    with ledger.transaction() as connection:
        return jobs.find(connection, reference)


def print_answer(answer: "Answer", *, as_json: bool) -> None:
    """Says what a command changed: one line for people, an object for machines."""
    typer.echo(json.dumps(answer.as_json, default=str) if as_json else answer.line)


def allowed_file(settings: "Settings", uri: str) -> str:
    """A file to write; BadInput when it lies outside the roots that the operator allows."""
    from nightshift.common import storage

    storage.check_roots([storage.resolve(uri)], settings.allowed_roots)
    return uri


def row_error_kind(name: str | None) -> "RowErrorKind | None":
    """The kind of row error that --kind names; BadInput when there is no such kind."""
    from nightshift.common.states import RowErrorKind

    if name is None:
        return None
    if name not in list(RowErrorKind):
        raise BadInput(f"--kind {name!r} is not one of {', '.join(RowErrorKind)}")
    return RowErrorKind(name)
