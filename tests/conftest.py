"""Fixtures of every suite: a Postgres and a Redis for each process of the run, and what lives there."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
import typer.testing
from xdist.scheduler import LoadScopeScheduling

from nightshift.common.ledger import Ledger
from tests.support import homes, warm
from tests.support.databases import Databases
from tests.support.example import EXAMPLES, Example
from tests.support.world import World

HERE = Path(__file__).parent


VLLM_FILES = "_vllm.py"
"""How the name of a file ends whose tests need vLLM, which takes a core for half a minute before it
answers; its tests get the marks `vllm` and `slow`.
"""

FOLDERS = (
    "faults",
    "matrix",
    "browser",
    "launch",
    "examples",
    "recipes",
    "packaging",
    "integration",
    "engine",
    "unit",
    "deploy",
)
"""In this order they are begun: the longest tests first, so that no process ends with one."""


TOGETHER = (
    "tests/matrix/",
    "tests/browser/test_site.py",
    "tests/packaging/test_wheel.py",
    "tests/deploy/test_images.py",
    "tests/engine/test_transformers.py",
    "tests/integration/test_first_hour_results.py",
)
"""Files and folders that run in one xdist worker each, because their fixtures take seconds to create."""


class TwoVllmAtOnce(LoadScopeScheduling):
    """Schedule tests one by one, except for those that start vLLM and those in `TOGETHER`.

    An engine uses a whole core, so vLLM tests run in two xdist workers: one for tests/engine, which takes longer, and
    one for all others.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.endswith(VLLM_FILES):
            return "vllm in engine" if path.startswith("tests/engine/") else "vllm elsewhere"
        return next((part for part in TOGETHER if path.startswith(part)), nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need vLLM, and puts them all into the order in which they begin."""
    for item in items:
        if item.path.name.endswith(VLLM_FILES):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.slow)

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.relative_to(HERE).parts[0]
        return item.get_closest_marker("vllm") is None, FOLDERS.index(folder)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    # Typer's runner for tests builds all commands anew for each run, in 12 ms of CPU.
    typer.testing._get_command = cache(typer.main.get_command)
    warm.freeze_imports()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """The scheduler of `make test`; xdist's own groups do nothing under pytest 9.2."""
    return TwoVllmAtOnce(config, log)


WARM_FOLDERS = {"browser", "engine", "examples", "recipes", "faults", "integration", "matrix"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What this test starts is forked from a process that has made its imports."""
    if item.path.relative_to(HERE).parts[0] not in WARM_FOLDERS:
        warm.use(())
    elif item.get_closest_marker("vllm"):
        # At once: tests of engines take a process that starts while an engine is loaded for one of the engine's.
        warm.use(warm.VLLM, at_once=True)
    else:
        warm.use(warm.LIGHT)


def pytest_unconfigure() -> None:
    warm.end()


ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Environment of vLLM in tests. vLLM's default pins the workers of all engines on two cores to the same one."""


def pytest_configure(config: pytest.Config) -> None:
    """Configure structlog, Hypothesis and vLLM's threads for all tests."""
    os.environ.update(ONE_THREAD)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    # structlog's default renderer adds the locals of each frame, which costs a CPU second per traceback.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    # Test machines are shared: the duration of an example says nothing about the code.
    hypothesis.settings.register_profile(
        "no-deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("no-deadline")


class FailuresAtOnce:
    """Print each failure when it happens: a run that is stopped prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a failed test and the end of its report."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(
                f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext[-4000:]}"
            )


@pytest.fixture(autouse=True)
def _own_log_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command sets for the log of its process ends with the test that runs it here: no
    logger keeps these settings.
    """
    settings, configure = structlog.get_config(), structlog.configure

    def without_cache(**given: Any) -> None:
        configure(**{**given, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", without_cache)
    yield
    configure(**settings)


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the processes of the run leave what they make for each other."""
    base = tmp_path_factory.getbasetemp()
    homes.shared = base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def servers_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the embedded servers; it goes away with pytest's other folders."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def postgres_url(servers_home: Path) -> Iterator[str]:
    """A Postgres of this run, reached as superuser; it starts when the first test wants it."""
    from nightshift.producer.embedded.postgres import EmbeddedPostgres

    homes.furnish(servers_home)
    server = EmbeddedPostgres()
    url = server.start(servers_home)
    yield url
    server.stop()


@pytest.fixture(scope="session")
def redis_url(servers_home: Path) -> Iterator[str]:
    """A Redis of this run; it starts when the first test wants it."""
    from nightshift.producer.embedded.redis_server import EmbeddedRedis

    server = EmbeddedRedis()
    try:
        yield server.start(servers_home)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def databases(postgres_url: str) -> Iterator[Databases]:
    """The databases of this process's tests."""
    found = Databases(postgres_url, keeps_sessions=True)
    yield found
    found.close()


@pytest.fixture
def fresh_database(databases: Databases) -> Iterator[Callable[..., str]]:
    """Gives databases for the time of the test, migrated and empty ones unless told otherwise:
    their URLs."""
    with ExitStack() as given:

        def fresh(*, migrated: bool = True) -> str:
            url = databases.take(migrated=migrated)
            given.callback(databases.give_back, url)
            return url

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


@pytest.fixture
def world(ledger: Ledger) -> World:
    """Jobs on that database, and what is done with their batches."""
    return World(ledger)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Callable[[str], Example]]:
    """`example(name)` copies examples/NAME; what was started there ends with the test."""
    copies: list[Example] = []

    def copy(name: str) -> Example:
        folder = tmp_path / name
        shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("out*", "data"))
        copies.append(Example(folder))
        return copies[-1]

    yield copy
    for each in copies:
        each.end()
