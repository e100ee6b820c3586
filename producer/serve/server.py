"""The process of `nightshift serve`: the application under uvicorn, until it is asked to end."""

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import uvicorn
from starlette.applications import Starlette

from nightshift.common.errors import BadInput
from nightshift.common.formats.parquet import footer_trial
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.system_errors import told
from nightshift.producer.advice.here import FLEET, Here, Works
from nightshift.producer.local.fleet import LocalFleet
from nightshift.producer.serve import access, app, connections
from nightshift.producer.serve.health import Health

log = structlog.get_logger(__name__)

CONNECTIONS = 16
"""Connections to Postgres of one server process; threads of requests share them."""

LEAVE_SECONDS = 30
"""Time that open requests get after SIGTERM."""


LOOK_SECONDS = 1.0
"""Pause between two checks whether a process of the fleet beside the server has ended."""


def run(
    ledger: Ledger,
    settings: Settings,
    fleet: LocalFleet | None = None,
    *,
    add_pages: Callable[[Starlette], None],
) -> None:
    """Serves the API and the pages until SIGTERM or SIGINT, and keeps the `fleet` of this machine up
    meanwhile. BadInput when the address is taken.
    """
    if access.nobody_enters(ledger, settings):
        log.warning(
            "serve_closed", host=settings.serve_host, next="nightshift key create --tenant NAME"
        )
    # uvicorn raises the signal again once every request is answered: the end that was asked for is no
    # failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    listener = _listener(settings)
    host, port = listener.getsockname()[:2]
    log.info("serve_started", host=host, port=port)
    health = Health() if fleet is None else Health(fleet.troubles)
    here = FLEET if fleet is None else Here(Works.SERVE)
    served = app.build(ledger, settings, health=health, here=lambda: here)
    add_pages(served)
    config = uvicorn.Config(
        served,
        http=connections.protocol(settings),
        ws="none",  # the package for it would take connections out of our count
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LEAVE_SECONDS,
    )
    server, done = _Server(config, served.state.context.slow.ending), threading.Event()

    def look() -> None:
        while fleet is not None and not done.wait(LOOK_SECONDS):
            try:
                fleet.is_broken()  # never for good: what ended is started again
            except Exception:  # without this thread nothing would be started again
                log.exception("fleet_look_failed")

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    # Not joined: a frozen Postgres may hold up its question for a while.
    threading.Thread(target=health.watch, args=(ledger, done), daemon=True).start()
    try:
        with listener, footer_trial.begun():
            server.run(sockets=[listener])
    finally:
        done.set()
        looking.join()
        log.info("serve_ended")


@contextmanager
def beside(served: Starlette, port: int) -> Iterator[int]:
    """Serves an application on a loopback port, any free one for 0, in a thread until the block ends;
    gives the port. BadInput when the port is taken.
    """
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise BadInput(f"port {port} cannot be used ({told(error)}): name another one") from error
    config = uvicorn.Config(
        served,
        ws="none",  # the package for it would take connections out of our count
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=0,  # a download may last as long as its client likes
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        with listener:
            yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LEAVE_SECONDS)


class _Server(uvicorn.Server):
    """A server that says so to slow work when it begins to end."""

    def __init__(self, config: uvicorn.Config, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)


def _listener(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.serve_host else socket.AF_INET
        return socket.create_server((settings.serve_host, settings.serve_port), family=family)
    except OSError as error:
        raise BadInput(
            f"nothing can be served on {settings.serve_host} port {settings.serve_port} "
            f"({told(error)}): set NIGHTSHIFT_SERVE_PORT to a port that is free, and "
            "NIGHTSHIFT_SERVE_HOST to an address of this machine"
        ) from error
