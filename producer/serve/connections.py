"""Connections of clients: one that says nothing, or takes nothing, for long is cut off, and an address has
some of them, not all.

uvicorn bounds the idle time between two requests alone, and its limit of connections refuses everybody once
one client has them. Its protocol is a class for this reason: what is added here is a clock and a count.
"""

import ipaddress
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nightshift.common.settings import Settings
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
    """What the connections of a server share: how many each address has, and may have."""

    def __init__(self, settings: Settings) -> None:
        self.seconds = settings.serve_idle_seconds
        self._most, self._proxies = settings.serve_max_connections, settings.serve_proxies
        self._here: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Counts a connection; False where its address has too many."""
        self._here[host] += 1
        return self._here[host] <= self._most or self._is_proxy(host)

    def leave(self, host: str) -> None:
        """The end of a connection that was counted."""
        self._here[host] -= 1
        if not self._here[host]:
            del self._here[host]

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return True  # a socket of this machine has no address
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._proxies)


class BoundedProtocol(HttpToolsProtocol):
    """A connection with a clock: `head_since` is the time when the head of a request began to come, None
    once it is whole; `moved` when the client last sent something; `stuck_since` when it ceased to take the
    answer, or the connection began to close.
    """

    limits: ClassVar[Limits]

    def connection_made(self, transport: Any) -> None:  # noqa: D102
        super().connection_made(transport)
        self._head_since: float | None = self.loop.time()
        self._moved, self._bytes_received, self._head_bytes = self.loop.time(), 0, 0
        self._stuck_since: float | None = None
        self._address = self.client[0] if self.client else ""
        self._look_later()
        if not self.limits.enter(self._address):
            self._refuse("503 Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        super().connection_lost(exc)
        self._looking.cancel()
        self.limits.leave(self._address)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self.transport.is_closing():
            return
        self._moved = self.loop.time()
        self._bytes_received += len(data)
        super().data_received(data)
        # The parser reports a header once it is whole.
        if self._head_since is not None and self._bytes_received > MOST_HEAD_BYTES:
            self._refuse_head()

    def on_url(self, url: bytes) -> None:  # noqa: D102
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: D102
        super().on_header(name, value)
        self._count_head(len(name) + len(value))

    def on_message_begin(self) -> None:  # noqa: D102
        super().on_message_begin()
        self._head_since, self._head_bytes = self._moved, 0

    def on_headers_complete(self) -> None:  # noqa: D102
        super().on_headers_complete()
        self._head_since = None

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
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            self._refuse("400 Bad Request", msg)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MOST_HEAD_BYTES:
            raise ValueError("the head is too long")  # ends the parser

    def _refuse_head(self) -> None:
        self._refuse("431 Request Header Fields Too Large")

    def _refuse(self, status: str, text: str = "") -> None:
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
    """The protocol of one server with these settings."""
    return type("Protocol", (BoundedProtocol,), {"limits": Limits(settings)})
