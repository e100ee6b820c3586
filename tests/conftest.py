"""Fixtures of every suite: one Postgres and one Redis of our own for each process of the run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

from tests.support import homes, warm

HERE = Path(__file__).parent


VLLM_FILES = "_vllm.py"
"""How the name of a file ends whose tests need a process of vLLM; its tests get the mark `vllm`."""

FOLDERS = ("faults", "examples", "packaging", "integration", "engine", "unit", "deploy")
"""In this order they are begun: the longest tests first, so that no process ends with one."""


class OneVllmAtOnce(LoadScopeScheduling):
    """Hands out test by test, but all that start vLLM to one process: an engine takes a core."""

    def _split_scope(self, nodeid: str) -> str:
        return "vllm" if nodeid.partition("::")[0].endswith(VLLM_FILES) else nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that need vLLM, and puts them all into the order in which they begin."""
    for item in items:
        if item.path.name.endswith(VLLM_FILES):
            item.add_marker(pytest.mark.vllm)

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.relative_to(HERE).parts[0]
        return item.get_closest_marker("vllm") is None, FOLDERS.index(folder)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """The scheduler of `make test`; xdist's own groups do nothing under pytest 9.2."""
    return OneVllmAtOnce(config, log)


WARM_FOLDERS = {"engine", "examples", "faults", "integration"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What this test starts is forked from a process that has made its imports."""
    if item.path.relative_to(HERE).parts[0] not in WARM_FOLDERS:
        warm.use(())
    else:
        warm.use(warm.VLLM if item.get_closest_marker("vllm") else warm.LIGHT)


def pytest_unconfigure() -> None:
    warm.end()


def pytest_configure(config: pytest.Config) -> None:
    """Tracebacks in the log as Python writes them: with the locals of each frame, as structlog does
    it unless told otherwise, one of them takes a second of a core.
    """
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


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
    from nightshift.common.processes.postgres import EmbeddedPostgres

    homes.furnish(servers_home)
    server = EmbeddedPostgres()
    url = server.start(servers_home)
    yield url
    server.stop()


@pytest.fixture(scope="session")
def redis_url(servers_home: Path) -> Iterator[str]:
    """A Redis of this run; it starts when the first test wants it."""
    from nightshift.common.processes.redis_server import EmbeddedRedis

    server = EmbeddedRedis()
    try:
        yield server.start(servers_home)
    finally:
        server.stop()
