"""The listener that Prometheus scrapes: metrics over HTTP, for this machine alone by default."""

import hmac
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app
from prometheus_client.core import InfoMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer

from nightshift.common.errors import BadInput
from nightshift.common.provenance import code_version
from nightshift.common.remotes import is_loopback
from nightshift.common.settings import Settings
from nightshift.common.system_errors import told

log = structlog.get_logger(__name__)

PATH = "/metrics"

PATIENCE_SECONDS = 10.0
"""Longest silence of a client in the middle of a request."""

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


def build_info() -> InfoMetricFamily:
    """Return nightshift_build_info, which both the supervisor and the reaper export."""
    meaning = "Always 1; the label says which code runs."
    return InfoMetricFamily("nightshift_build", meaning, {"version": code_version()})


@contextmanager
def serve(settings: Settings, registry: CollectorRegistry) -> Iterator[int | None]:
    """Serves a registry in threads of its own, inside of the context; gives the port.

    Without a port in the settings nobody listens, and None is given. BadInput when the port is
    taken, or when others could read without a key.
    """
    if settings.metrics_port is None:
        yield None
        return
    host, key = settings.metrics_host, settings.metrics_key
    if key is None and not is_loopback(host):
        raise BadInput(
            f"NIGHTSHIFT_METRICS_HOST is {host}, which other machines reach: set "
            "NIGHTSHIFT_METRICS_KEY as well, or leave the host at 127.0.0.1"
        )
    disable_created_metrics()  # one more series for each counter, which no one reads
    application = _guarded(registry, None if key is None else key.get_secret_value())
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, settings.metrics_port, application, kind, _Request)
    except OSError as error:
        raise BadInput(
            f"the metrics cannot be served on {host} port {settings.metrics_port} "
            f"({told(error)}): set NIGHTSHIFT_METRICS_PORT to a port that is free, "
            "and NIGHTSHIFT_METRICS_HOST to an address of this machine"
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics_served", host=host, port=server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _guarded(registry: CollectorRegistry, key: str | None) -> Application:
    """The metrics, for every request that brings the key."""
    metrics: Application = make_wsgi_app(registry)
    expected = None if key is None else key.encode()

    def application(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if expected is not None and not _brings(environ, expected):
            return _refused(start, "401 Unauthorized", ("WWW-Authenticate", "Bearer"))
        if environ.get("PATH_INFO") != PATH:
            return _refused(start, "404 Not Found")
        try:
            return metrics(environ, start)
        except Exception:
            log.exception("scrape_failed")
            return _refused(start, "500 Internal Server Error")

    return application


def _brings(environ: dict[str, Any], expected: bytes) -> bool:
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    # WSGI hands over header bytes as latin-1.
    given = token.strip().encode("latin-1", "replace")
    return hmac.compare_digest(given, expected) and scheme.lower() == "bearer"


def _refused(start: StartResponse, status: str, *headers: tuple[str, str]) -> list[bytes]:
    body = f"{status.partition(' ')[2]}\n".encode()
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *headers])
    return [body]


class _Request(WSGIRequestHandler):
    timeout = PATIENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: scrapes come every few seconds."""


class _Server(ThreadingWSGIServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left before its answer is no error of this process."""
        log.debug("scrape_broken", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6
