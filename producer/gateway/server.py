"""The process of `nightshift serve`: the application under uvicorn, until it is asked to end."""

import signal
import socket
import sys

import structlog
import uvicorn

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.gateway import access, app

log = structlog.get_logger(__name__)

CONNECTIONS = 16
"""Connections to Postgres of one server process; threads of requests share them."""

LEAVE_SECONDS = 30
"""Time that open requests get after SIGTERM."""


def run(ledger: Ledger, settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. BadInput when the address is taken, or open without a key."""
    access.check_listening(ledger, settings)
    # uvicorn raises the signal again once every request is answered: the end that was asked for is no
    # failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = _listener(settings)
    host, port = listener.getsockname()[:2]
    log.info("serve_started", host=host, port=port)
    config = uvicorn.Config(
        app.build(ledger, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LEAVE_SECONDS,
    )
    try:
        with listener:
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        log.info("serve_ended")


def _listener(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.serve_host else socket.AF_INET
        return socket.create_server((settings.serve_host, settings.serve_port), family=family)
    except OSError as error:
        raise BadInput(
            f"nothing can be served on {settings.serve_host} port {settings.serve_port} "
            f"({error.strerror or error}): set NIGHTSHIFT_SERVE_PORT to a port that is free, and "
            "NIGHTSHIFT_SERVE_HOST to an address of this machine"
        ) from error
