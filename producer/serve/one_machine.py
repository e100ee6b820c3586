"""`nightshift serve` without a fleet: servers, a reaper and workers of this machine behind the HTTP API."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from nightshift.common.ledger import Ledger
from nightshift.common.permits import engine_args
from nightshift.common.settings import Settings
from nightshift.producer.advice.here import Here, Works
from nightshift.producer.local.fleet import LocalFleet, running
from nightshift.producer.local.machine import machine
from nightshift.producer.local.worker_settings import on_one_machine
from nightshift.producer.serve import model_table
from nightshift.producer.serve.model_table import ModelTable

Serve = Callable[[Ledger, Settings, LocalFleet], None]
"""Answers until it is asked to end; says what is wrong with the fleet."""

FILES = "files"
"""Folder for the files of the HTTP API, in the home folder."""


def serve_alone(settings: Settings, console: Console, serve: Serve, connections: int) -> None:
    """Serves the HTTP API over a fleet on this machine, with a worker for each pool of the models.

    Raises BadInput without a table of models and when another command uses the home folder. Servers,
    workers and the reaper are started again for ever, see `restarts`.
    """
    table = model_table.load(settings.serve_models)
    with machine(for_table(table, settings), console, connections=connections) as here:
        Here(Works.SERVE).say(here.home)
        pools = sorted({model.pool for model in table.models.values()})
        workers = {
            f"worker-{pool}" if len(pools) > 1 else "worker": ["--pool", pool] for pool in pools
        }
        # The server stays up when a worker ends again and again: users still read finished results here.
        fleet = here.new_fleet(here.settings, workers, most_ends=None)
        with running(fleet, console):
            console.print(
                f"a fleet of this machine in {here.home}; models: {', '.join(table.models)}; Ctrl-C "
                "ends the server and the fleet; the same command starts both again and continues the work",
                soft_wrap=True,
                markup=False,
            )
            serve(here.ledger, here.settings, fleet)


def for_table(table: ModelTable, settings: Settings) -> Settings:
    """Settings of the fleet: engines may have the arguments that the table gives them, and files lie in
    the home folder unless a store is set. Who starts the server here is the operator of the machine.
    """
    allowed = settings.allowed_engine_args or ()
    for model in table.models.values():
        allowed = engine_args.with_own(model.engine, allowed)
    store = settings.serve_store or str(Path(settings.home).absolute() / FILES)
    path = settings.serve_models and settings.serve_models.absolute()
    changed = {"allowed_engine_args": allowed, "serve_store": store, "serve_models": path}
    return on_one_machine(settings.model_copy(update=changed))
