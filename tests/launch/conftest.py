"""What the launchers of examples/launch start workers with; all of these tests are slow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.launch import programs
from tests.launch.slurm import Slurm
from tests.support.example import Example

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def launch(example: Callable[[str], Example], database_url: str, redis_url: str) -> Example:
    """A copy of examples/launch, with the fleet of this test's database and `rules.py` in it."""
    found = example("launch")
    found.environment |= {
        "NIGHTSHIFT_DATABASE_URL": database_url,
        "NIGHTSHIFT_BROKER_URL": redis_url,
        "NIGHTSHIFT_ALLOWED_MODULES": "rules",
        "NIGHTSHIFT_CALLABLE_PATHS": str(found.folder),
    }
    return found


@pytest.fixture
def ask(database_url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """All rows that a question to this test's database has."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda query: connection.execute(query).fetchall()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A Slurm of one node, which ends with the test."""
    if lacking := programs.missing(programs.SLURM):
        pytest.skip(
            f"{', '.join(lacking)}: not here; `python -m tests.launch.programs` unpacks Debian's"
        )
    found = Slurm(tmp_path / "slurm")
    try:
        found.start()
        yield found
    finally:
        found.end()
