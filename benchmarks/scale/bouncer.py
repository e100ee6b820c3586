"""PgBouncer in front of a benchmark's Postgres, in transaction mode, where it is installed."""

import getpass
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from nightshift.common.processes.process_group import ProcessGroup

POOL_SIZE = 20
"""Connections from PgBouncer to Postgres."""

START_SECONDS = 10.0

CONFIG = """
[databases]
{database} = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 5000
"""


@contextmanager
def bouncer(url: str, folder: Path) -> Iterator[str | None]:
    """The address of a PgBouncer before that database, on loopback; None where there is none."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        yield None
        return
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        own_port = free.getsockname()[1]
    config = folder / "pgbouncer.ini"
    config.touch(0o600)
    config.write_text(
        CONFIG.format(
            database=parts.path.strip("/"), host=parts.hostname, port=parts.port,
            user=parts.username, password=parts.password, own_port=own_port, pool_size=POOL_SIZE,
        )
    )  # fmt: skip
    # It refuses to run as root, and reads the file before it becomes another user.
    user = ["--user=nobody"] if getpass.getuser() == "root" else []
    with (folder / "pgbouncer.log").open("ab") as output:
        group = ProcessGroup.start(
            [program, *user, str(config)],
            stdout=output,
            stderr=output,
            record=folder / "processes",
        )
    try:
        own = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{own_port}"))
        _wait(own)
        yield own
    finally:
        group.stop(START_SECONDS)


def _wait(url: str) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
