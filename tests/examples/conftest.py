"""An example as a new user runs it: in a copy of its folder, with a ledger of its own there."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import database_url, fresh_database, template_database
from tests.integration.fleet import Fleet, logs

__all__ = ["database_url", "fresh_database", "template_database"]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(Fleet):
    """A copy of one example's folder, and `nightshift` in it."""

    def nightshift(self, *arguments: str, exit_code: int = 0, seconds: float = 400) -> str:
        """What the command printed; fails when it ended with another exit code."""
        done = self.command(*arguments, seconds=seconds)
        said = f"{done.stdout}\n{done.stderr}\n{logs(self.folder)}"
        assert done.returncode == exit_code, said
        return done.stdout


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
