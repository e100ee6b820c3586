"""Bounds of connections: a client that sends nothing, or takes nothing, for long is cut off, a head is bounded, and one
address cannot have all connections.

uvicorn bounds only the idle time between two requests, and `limit_concurrency` refuses everybody once one client has all
connections. So its protocol gets a clock and two counts here.
"""

from collections import Counter
from itertools import chain
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nightshift.common.settings import Settings
from nightshift.producer.serve import access
from nightshift.producer.serve.headers import always

MOST_HEAD_BYTES = 64 * 1024
"""Longest head of a request: its first line and its headers."""

LOOKS = 4
"""Looks at a connection while it may be silent."""


def refusal(status: str, text: str = "") -> bytes:
    """An answer of the server itself, which ends the connection; `text` is ASCII."""
    headers = {
        "content-length": len(text),
        "content-type": "text/plain; charset=utf-8",
        **always(),
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n{text}".encode()


class Limits:
    """What the connections of a server share: the settings, and how many connections each address has."""

    def __init__(self, settings: Settings) -> None:
        self.seconds = settings.serve_idle_seconds
        self._settings = settings
        self._open: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Count a connection; return False if its address has too many."""
        self._open[host] += 1
        most = self._settings.serve_max_connections
        return self._open[host] <= most or access.is_proxy(host, self._settings)

    def leave(self, host: str) -> None:
        """End a connection that was counted."""
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]


class BoundedProtocol(HttpToolsProtocol):
    """A connection with a clock: `head_since` is the time when the head of a request began to come, None
    once it is whole; `moved` when the client last sent something; `stuck_since` when it ceased to take the
    answer, or the connection began to close.
    """

    limits: ClassVar[Limits]

    def connection_made(self, transport: Any) -> None:  # noqa: D102
        super().connection_made(transport)
        self._moved = self.loop.time()
        self._head_since: float | None = self._moved
        self._stuck_since: float | None = None
        self._bytes_received = 0
        self._address = self.client[0] if self.client else ""
        self._look_later()
        if not self.limits.enter(self._address):
            self._refuse("503 Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        super().connection_lost(exc)
        self._looking.cancel()
        self.limits.leave(self._address)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._moved = self.loop.time()
        self._bytes_received += len(data)
        super().data_received(data)
        if self._head_since is not None and self._bytes_received > MOST_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:  # noqa: D102
        super().on_message_begin()
        self._head_since = self._moved

    def on_headers_complete(self) -> None:  # noqa: D102
        self._head_since = None
        # A head that came whole in one read.
        if len(self.url) + sum(map(len, chain(*self.headers))) > MOST_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too long")  # ends the parser
        super().on_headers_complete()

    def on_message_complete(self) -> None:  # noqa: D102
        super().on_message_complete()
        self._bytes_received = 0

    def pause_writing(self) -> None:  # noqa: D102
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:  # noqa: D102
        super().resume_writing()
        self._stuck_since = None

    def send_400_response(self, msg: str) -> None:  # noqa: D102
        self._refuse("400 Bad Request", msg)

    def _refuse_head(self) -> None:
        self._refuse("431 Request Header Fields Too Large")

    def _refuse(self, status: str, text: str = "") -> None:
        if not self.transport.is_closing():
            self.transport.write(refusal(status, text))
            self.transport.close()

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(self.limits.seconds / LOOKS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing() and self._stuck_since is None:
            self._stuck_since = self.loop.time()
        since = self._waits_since()
        if since is not None and self.loop.time() - since > self.limits.seconds:
            self.transport.abort()
        self._look_later()

    def _waits_since(self) -> float | None:
        """Since when the server waits for the client; None while the client waits for the server."""
        if self._stuck_since is not None:
            return self._stuck_since
        if self._head_since is not None:
            return self._head_since
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.waiting_for_100_continue:
            return None
        return None if self.flow.read_paused else self._moved


def protocol(settings: Settings) -> type[BoundedProtocol]:
    """Return the protocol of one server with these settings."""
    return type("Protocol", (BoundedProtocol,), {"limits": Limits(settings)})
