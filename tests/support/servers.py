"""A Postgres and a Redis of the suite's own, that can be stopped, killed and frozen."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis
from tests.support.fleet import is_alive, wait_until


class Server:
    """An embedded server under a home folder; it comes back under the same address."""

    def __init__(self, server: EmbeddedPostgres | EmbeddedRedis, home: Path) -> None:
        self._server: Any = server
        self._home = home
        self.url = ""
        self.start()

    @property
    def port(self) -> int:
        """Its TCP port on loopback."""
        return int(self._server.port)

    def start(self) -> None:
        """Up, if it is down."""
        if self._server.group is None:
            self.url = self._server.start(self._home)

    def stop(self) -> None:
        """Down, the orderly way."""
        self.thaw()
        self._server.stop()

    def kill(self) -> None:
        """Down by SIGKILL."""
        members = self._members()
        self._server.group.kill()
        wait_until(lambda: not any(map(is_alive, members)), what="the end of the server")
        self._server.group = None

    def freeze(self) -> None:
        """SIGSTOP for every process of it: connections stay up, nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members():
            with suppress(psutil.NoSuchProcess):  # a backend that left meanwhile
                member.send_signal(number)

    def _members(self) -> list[psutil.Process]:
        if self._server.group is None or self._server.group.poll() is not None:
            return []
        root = psutil.Process(self._server.group.pid)
        return [root, *root.children(recursive=True)]
