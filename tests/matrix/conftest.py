"""The one scene of all jobs of the matrix."""

import os
from collections.abc import Iterator

import pytest

from tests.matrix.scene import Scene
from tests.support.databases import Databases
from tests.support.remote import Remote


@pytest.fixture(scope="session")
def scene(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases, redis_url: str
) -> Iterator[Scene]:
    """A fleet, serve and the stand-in server, for all tests of this process."""
    url = databases.take()
    with Remote().running() as remote, pytest.MonkeyPatch.context() as patch:
        found = Scene(tmp_path_factory.mktemp("matrix"), url, redis_url, remote)
        for name in [name for name in os.environ if name.startswith("NIGHTSHIFT_")]:
            patch.delenv(name)
        for name, value in found.environment.items():
            patch.setenv(name, value)
        patch.setenv("COLUMNS", "200")
        patch.chdir(found.folder)
        found.start()
        yield found
        found.end()
    databases.give_back(url)
