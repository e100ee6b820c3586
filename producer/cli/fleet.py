"""Commands that keep a fleet: migrate, reaper, alive."""

import json
import signal
import threading

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context


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
    """Keep the fleet going: take back lost leases, hand out work, finish jobs; run two or more."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from nightshift.common import logs
    from nightshift.common.settings import load_settings

    settings = load_settings()
    logs.configure(settings, process="reaper")
    if settings.database_url is None:
        raise BadInput("NIGHTSHIFT_DATABASE_URL is not set: a reaper needs the ledger")
    from nightshift.common.telemetry import run_state
    from nightshift.producer.connect import open_ledger
    from nightshift.producer.reaper import loop

    state = None if settings.run_dir is None else run_state.claim(settings.run_dir, "reaper")
    with open_ledger(settings, connections=loop.CONNECTIONS) as (ledger, _):
        loop.run(ledger, settings, stop, state)


def alive() -> None:
    """Say whether the reaper of NIGHTSHIFT_RUN_DIR makes its rounds; for a liveness probe."""
    from nightshift.producer.reaper import alive as probe

    raise typer.Exit(probe.answer())
