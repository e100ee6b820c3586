"""What several integration tests stand on: a fleet, other ledgers and transactions, object stores."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from tests.support.fleet import Fleet
from tests.support.receiver import Listen, Receiver

if TYPE_CHECKING:
    import s3fs

    from tests.support.object_store import ObjectStore
    from tests.support.sender import Sender


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Fleet]:
    """Commands, reapers and workers of this test's database, which may call `rules.py`."""
    found = Fleet(
        tmp_path,
        NIGHTSHIFT_DATABASE_URL=database_url,
        NIGHTSHIFT_BROKER_URL=redis_url,
        NIGHTSHIFT_ALLOWED_MODULES="rules",
        NIGHTSHIFT_CALLABLE_PATHS=str(tmp_path),
    )
    yield found
    found.end()


@pytest.fixture
def ask(database_url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """All rows that a question to this test's database has."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda query: connection.execute(query).fetchall()


@pytest.fixture
def frozen(second_ledger: Callable[[], Ledger]) -> Iterator[Connection]:
    """A transaction of another process that ends only with the test."""
    with second_ledger().transaction() as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def other_ledger(other_url: str) -> Iterator[Ledger]:
    found = Ledger(other_url, connections=2)
    yield found
    found.close()


@pytest.fixture
def other_url(fresh_database: Callable[..., str]) -> str:
    """The database of another ledger; the databases of the tests are copies, and so is the id in them."""
    url = fresh_database()
    ledger = Ledger(url, connections=1)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE ledger_meta SET ledger_id = gen_random_uuid()"))
    ledger.close()
    return url


@pytest.fixture
def store() -> "Iterator[ObjectStore]":
    """One for each test: an upload that failed may have a piece under way that comes later."""
    # moto and s3fs take a second to import, which most tests can do without.
    from tests.support.object_store import ObjectStore

    found = ObjectStore()
    with found.as_own():
        yield found
    found.close()


@pytest.fixture
def fresh() -> str:
    """Name of the test's own bucket: what moto holds is shared by all servers of a process, and
    so by other tests.
    """
    return f"bucket-{uuid4().hex}"


@pytest.fixture
def client(store: "ObjectStore", fresh: str) -> "Iterator[s3fs.S3FileSystem]":
    """A client beside the code's own, with an empty bucket."""
    from tests.support.object_store import close_client

    found = store.filesystem()
    found.mkdir(fresh)
    yield found
    close_client(found)


@pytest.fixture
def sender(ledger: Ledger) -> "Sender":
    """Who sends the webhooks of a tenant."""
    # Without the wing `serve` the other tests here run all the same.
    from tests.support.sender import Sender

    return Sender(ledger)


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Makes receivers of webhooks that listen until the test is over."""
    with ExitStack() as stack:
        yield lambda *script: stack.enter_context(Receiver(*script).running())
