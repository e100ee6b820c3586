"""Commands that keep a fleet: drain, cordon, uncordon, gc, migrate, reaper, alive."""

import json
import signal
import threading
from typing import Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.common.processes import signals
from nightshift.producer.cli import context, proposals

Machine = Annotated[
    str,
    typer.Argument(
        metavar="HOST|WORKER",
        help="A host, a worker as `nightshift-worker` logs it (s-…), one of its slots (s-…/0), or the "
        "child that a slot has (w-…).",
        show_default=False,
        autocompletion=proposals.machines,
    ),
]


def drain(machine: Machine, *, as_json: context.AsJson = False) -> None:
    """Empty a worker or a host: finish what fits in the drain time, give the rest back.

    The drain time is NIGHTSHIFT_DRAIN_SECONDS of the worker. No new engine is started there until
    `nightshift uncordon`, also after a restart of the host.
    """
    from nightshift.producer.control import machines

    with context.ledger_of() as ledger:
        answer = machines.cordon(ledger, machine, drains=True)
    context.print_answer(answer, as_json=as_json)


def cordon(machine: Machine, *, as_json: context.AsJson = False) -> None:
    """Give a worker or a host no new work; what it holds ends as usual, engines stay warm."""
    from nightshift.producer.control import machines

    with context.ledger_of() as ledger:
        answer = machines.cordon(ledger, machine, drains=False)
    context.print_answer(answer, as_json=as_json)


def uncordon(machine: Machine, *, as_json: context.AsJson = False) -> None:
    """Let a drained or cordoned worker or host take work again."""
    from nightshift.producer.control import machines

    with context.ledger_of() as ledger:
        answer = machines.uncordon(ledger, machine)
    context.print_answer(answer, as_json=as_json)


def gc(
    *,
    home: Annotated[
        bool, typer.Option("--home", help="The embedded ledger of this folder, with its logs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete what was found.")] = False,
    as_json: context.AsJson = False,
) -> None:
    """Find what nobody needs: parts that never counted, deletions that were cut off.

    With --home it is about the embedded ledger of this folder, once its jobs are over.
    """
    from nightshift.producer.connect import open_ledger
    from nightshift.producer.control import garbage, homes

    settings = context.command_settings()
    if home and settings.database_url is not None:
        raise BadInput("--home is about the embedded ledger, and NIGHTSHIFT_DATABASE_URL is set")
    if home:
        answer = homes.collect(settings, sure=yes)
    else:
        with open_ledger(settings) as (ledger, _):
            answer = garbage.collect(ledger, settings, sure=yes)
    context.print_answer(answer, as_json=as_json)


def migrate(*, as_json: context.AsJson = False) -> None:
    """Bring the tables of the ledger up to this code."""
    from nightshift.common.ledger import schema
    from nightshift.producer.connect import open_ledger

    with open_ledger(context.command_settings(), checked=False) as (ledger, _):
        found = schema.migrate(ledger)
        schema.check(ledger)
        newer = f", newer than the {schema.SCHEMA:04} of this code, which may use it"
        said = f"{ledger.place} is at migration {found:04}{newer if found > schema.SCHEMA else ''}"
        if as_json:
            said = json.dumps({"action": "migrate", "migration": found, "message": said})
        typer.echo(said)


def reaper() -> None:
    """Take back lost leases, hand out work and finish jobs of a fleet; run two or more."""
    stop = threading.Event()
    signals.act_on({signal.SIGTERM: stop.set, signal.SIGINT: stop.set})
    from nightshift.common import logs
    from nightshift.common.settings import load_settings

    settings = load_settings()
    logs.configure(settings, process="reaper")
    if settings.database_url is None:
        raise BadInput("NIGHTSHIFT_DATABASE_URL is not set: a reaper needs the ledger")
    from nightshift.common.telemetry import run_state
    from nightshift.producer.connect import open_ledger
    from nightshift.producer.control import deletion
    from nightshift.producer.reaper import loop

    state = None if settings.run_dir is None else run_state.claim(settings.run_dir, "reaper")
    with open_ledger(settings, connections=loop.CONNECTIONS) as (ledger, _):
        loop.run(
            ledger,
            settings,
            stop,
            state,
            delete=lambda job: deletion.delete(ledger, job, settings, output=True),
        )


def alive() -> None:
    """Say whether the reaper of NIGHTSHIFT_RUN_DIR makes its rounds; for a liveness probe."""
    from nightshift.producer.reaper import alive as probe

    raise typer.Exit(probe.answer())
