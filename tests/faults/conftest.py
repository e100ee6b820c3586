"""Servers of the suite's own, which the tests may stop and freeze, and a rig on top of them."""

import random
import re
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis
from tests.support import homes
from tests.support.databases import Databases, with_port
from tests.support.fleet import logs
from tests.support.proxy import Proxy
from tests.support.rig import Rig
from tests.support.servers import Server

FAILURE = re.compile(r"warning|error|Traceback|^==", re.IGNORECASE)

LINES_TOLD = 60
"""Of the lines of a fleet's logs that tell of a failure; the last ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=0, help="run the long fault suite so long")
    parser.addoption("--fault-seed", type=int, default=None, help="repeat a run of the long suite")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: runs with --minutes only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` belong to the long suite only: left out, not skipped. The random ones
    come last and take the time that is left.
    """
    if config.getoption("--minutes", 0):
        items.sort(key=lambda item: "test_chaos" in item.nodeid)
        return
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if item not in long]
    config.hook.pytest_deselected(items=long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """The report of a test that failed says which duties and processes failed meanwhile."""
    report = yield
    rig = getattr(item, "funcargs", {}).get("rig")
    if report.when == "call" and report.failed and rig is not None:
        lines = [line for line in logs(rig.folder).splitlines() if FAILURE.search(line)]
        report.sections.append(("What failed in the fleet", "\n".join(lines[-LINES_TOLD:])))
    return report


@pytest.fixture(scope="session")
def minutes(request: pytest.FixtureRequest) -> float:
    """How long the random suite goes on; 0 in the short suite."""
    return float(request.config.getoption("--minutes", 0))


@pytest.fixture(scope="session", autouse=True)
def session_began() -> float:
    """When the suite began (monotonic seconds)."""
    return time.monotonic()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Randomness whose seed is printed, and repeated with --fault-seed."""
    given = request.config.getoption("--fault-seed", None)
    seed = random.SystemRandom().randrange(2**32) if given is None else int(given)
    print(f"--fault-seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("postgres")
    homes.furnish(home)
    server = Server(EmbeddedPostgres(), home)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(EmbeddedRedis(), tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url(own_postgres: Server) -> str:
    """The suite's own server in the place of the one that the other suites share."""
    return own_postgres.url


@pytest.fixture(scope="session")
def databases(postgres_url: str) -> Databases:
    """Those of the suite's own server."""
    return Databases(postgres_url)


@pytest.fixture
def fresh_database(
    fresh_database: Callable[..., str], own_postgres: Server
) -> Iterator[Callable[..., str]]:
    """Like that of the other suites; the server runs when its databases are given back."""
    yield fresh_database
    own_postgres.thaw()
    own_postgres.start()


@pytest.fixture
def postgres(own_postgres: Server) -> Iterator[Server]:
    """The server, up and running before and after the test."""
    yield own_postgres
    own_postgres.thaw()
    own_postgres.start()


@pytest.fixture
def redis(own_redis: Server) -> Iterator[Server]:
    """The broker, up and running before and after the test."""
    yield own_redis
    own_redis.thaw()
    own_redis.start()


@pytest.fixture
def make_rig(
    tmp_path: Path,
    database_url: str,
    postgres: Server,
    redis: Server,
) -> Iterator[Callable[..., Rig]]:
    """Makes the rig of a test with an environment of its choice; everything ends with the test."""
    made: list[Rig] = []

    def make(*, told: str | None = None, broker: str | None = None, **environment: str) -> Rig:
        folder = tmp_path / f"rig{len(made)}"
        made.append(Rig(folder, database_url, broker or redis.url, told, **environment))
        return made[-1]

    yield make
    postgres.thaw()
    postgres.start()
    for rig in made:
        rig.end()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A rig that nothing stands between."""
    return make_rig()


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    """Stands before Postgres."""
    found = Proxy(postgres.port)
    yield found
    found.close()


@pytest.fixture
def proxied(make_rig: Callable[..., Rig], proxy: Proxy, database_url: str) -> Rig:
    """A rig whose processes reach Postgres through the proxy only."""
    return make_rig(told=with_port(database_url, proxy.port))
