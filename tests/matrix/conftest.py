"""The one scene of all jobs of the matrix."""

import os
from collections.abc import Iterator

import pytest

from tests.matrix.scene import Scene
from tests.support.databases import Databases
from tests.support.remote import Remote


@pytest.fixture(scope="package")
def shared_scene(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases, redis_url: str
) -> Iterator[Scene]:
    """A fleet, serve and the stand-in server, for all tests of the matrix; they end with the last one."""
    url = databases.take()
    with Remote().running() as remote:
        found = Scene(tmp_path_factory.mktemp("matrix"), url, redis_url, remote)
        try:
            found.start()
            yield found
        finally:
            found.end()
    databases.give_back(url)


@pytest.fixture
def scene(shared_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The same, with its environment and its folder for the commands of one test: other tests run in this process."""
    for name in [name for name in os.environ if name.startswith("NIGHTSHIFT_")]:
        monkeypatch.delenv(name)
    for name, value in shared_scene.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(shared_scene.folder)
    return shared_scene
