"""Fixtures of every suite: one Postgres and one Redis of our own for the whole run."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest


@pytest.fixture(scope="session")
def servers_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the embedded servers; it goes away with pytest's other folders."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def postgres_url(servers_home: Path) -> Iterator[str]:
    """A Postgres of this run, reached as superuser; it starts when the first test wants it."""
    from common.embedded import EmbeddedPostgres

    server = EmbeddedPostgres()
    url = server.start(servers_home)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            # Nothing here outlives the machine; without fsync a database of one's own is cheap.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_url(servers_home: Path) -> Iterator[str]:
    """A Redis of this run; it starts when the first test wants it."""
    from common.embedded import EmbeddedRedis

    server = EmbeddedRedis()
    try:
        yield server.start(servers_home)
    finally:
        server.stop()
