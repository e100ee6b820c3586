"""A receiver of webhooks on loopback that answers each delivery as its script says."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import parse_headers

Answer = bytes | Callable[[socket.socket], None]
"""The bytes of an answer, after which the receiver hangs up; or what it does with the connection."""

TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Heard:
    """One delivery; header names in lower case."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The id of the event."""
        return self.headers["webhook-id"]


class Receiver:
    """The receiver; `script` has an answer for each delivery, the last one for all that come later."""

    def __init__(self, *script: Answer, context: ssl.SSLContext | None = None) -> None:
        self.script: Sequence[Answer] = script or (TAKEN,)
        self.heard: list[Heard] = []
        self.ended = threading.Event()
        self._context = context
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1."""
        return int(self._server.getsockname()[1])

    @property
    def url(self) -> str:
        """Where events go."""
        return f"http://127.0.0.1:{self.port}/events?from=fleet"

    @property
    def ids(self) -> list[str]:
        """The ids of what was heard, in order of arrival."""
        return [each.id for each in self.heard]

    @contextmanager
    def running(self) -> Iterator["Receiver"]:
        """Listens until the block ends."""
        self._threads[0].start()
        try:
            yield self
        finally:
            self.ended.set()
            self._server.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._server.close()

    def silent(self, connection: socket.socket) -> None:
        """Answers nothing until the sender hangs up."""
        with suppress(OSError):
            connection.recv(1)

    def endless(self, connection: socket.socket) -> None:
        """Sends a head byte by byte, and never its end."""
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 100 Continue\r\nx: ")
            while not self.ended.wait(0.01):
                connection.sendall(b"y")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._context is None:
                self._reply(connection)
                return
            with self._context.wrap_socket(connection, server_side=True) as secured:
                self._reply(secured)

    def _reply(self, connection: socket.socket) -> None:
        heard = _read(connection)
        with self._lock:
            number = len(self.heard)
            self.heard.append(heard)
        answer = self.script[min(number, len(self.script) - 1)]
        if isinstance(answer, bytes):
            connection.sendall(answer)
        else:
            answer(connection)


def _read(connection: socket.socket) -> Heard:
    """One request with a body of known length."""
    with connection.makefile("rb") as stream:
        target = stream.readline().decode().split(" ")[1]
        headers = {name.lower(): value for name, value in parse_headers(stream).items()}
        return Heard(target, headers, stream.read(int(headers["content-length"])))


Listen = Callable[..., Receiver]
"""Makes receivers with a script that listen until the test is over."""
