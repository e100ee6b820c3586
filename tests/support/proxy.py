"""A TCP proxy on loopback that can swallow, hold or cut what passes."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum


class Mode(Enum):
    """What happens to the bytes of every connection, old and new."""

    PASS = "pass"
    HOLD = "hold"  # they arrive when the mode changes
    SWALLOW = "swallow"  # they never arrive, and nobody is told
    CUT = "cut"  # every connection is reset


class Proxy:
    """Forwards 127.0.0.1:`port` to a server on loopback.

    `spot(data)` sees what clients send; where it returns a verb, that connection alone is cut:
    "before" the server gets the data, or "after" it answered, unseen by the client.
    """

    def __init__(self, upstream: int) -> None:
        self.spot: Callable[[bytes], str | None] = lambda _data: None
        self._upstream = upstream
        self._mode = Mode.PASS
        self._changed = threading.Condition()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()
        if mode is Mode.CUT:
            self.cut()

    def cut(self) -> None:
        """Ends every connection that is open now."""
        for pair in list(self._pairs):
            self._close(pair)

    def close(self) -> None:
        """Ends the proxy."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mode = Mode.CUT

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._open, args=(client,), daemon=True).start()

    def _open(self, client: socket.socket) -> None:
        if self._mode is Mode.CUT:
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        self._pairs.add(pair)
        mute = threading.Event()
        for source, target, watched in ((client, server, True), (server, client, False)):
            threading.Thread(
                target=self._pump, args=(pair, source, target, watched, mute), daemon=True
            ).start()

    def _pump(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        target: socket.socket,
        watched: bool,
        mute: threading.Event,
    ) -> None:
        try:
            while data := source.recv(65536):
                with self._changed:
                    self._changed.wait_for(lambda: self._mode is not Mode.HOLD)
                if self._mode is Mode.SWALLOW:
                    continue
                verb = self.spot(data) if watched else None
                if verb == "before":
                    break
                if verb == "after":
                    mute.set()
                elif mute.is_set() and not watched:
                    break
                target.sendall(data)
        except OSError:
            pass
        self._close(pair)

    def _close(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
