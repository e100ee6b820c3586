"""A database of its own for each test, copied from one that was migrated once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from nightshift.common.ledger import Ledger
from tests.support.homes import TEMPLATE

NUMBERS = count(1)


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> str:
    """Name of a database that holds the empty tables; nobody connects to it."""
    return TEMPLATE


@pytest.fixture
def fresh_database(postgres_url: str, template_database: str) -> Iterator[Callable[..., str]]:
    """Makes databases that are dropped after the test, migrated ones unless told otherwise;
    gives back their URLs."""
    with psycopg.connect(postgres_url, autocommit=True) as connection, ExitStack() as dropped:

        def fresh(*, migrated: bool = True) -> str:
            name = f"nightshift_test_{next(NUMBERS)}"
            template = template_database if migrated else "template0"
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
            dropped.callback(connection.execute, f"DROP DATABASE {name} WITH (FORCE)")
            return with_database(postgres_url, name)

        yield fresh


@pytest.fixture
def database_url(fresh_database: Callable[..., str]) -> str:
    """The URL of this test's database, migrated and empty."""
    return fresh_database()


@pytest.fixture
def second_ledger(database_url: str) -> Iterator[Callable[[], Ledger]]:
    """Makes more Ledgers on this test's database: other processes, as Postgres sees them."""
    with ExitStack() as closed:

        def another() -> Ledger:
            ledger = Ledger(database_url, connections=4)
            closed.callback(ledger.close)
            return ledger

        yield another


@pytest.fixture
def ledger(second_ledger: Callable[[], Ledger]) -> Ledger:
    """A Ledger on an empty, migrated database of its own."""
    return second_ledger()
