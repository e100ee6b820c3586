"""Every command of the README's tour and every query of the pages is run."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from nightshift.common.ledger import Ledger
from tests.support.fleet import Fleet, logs

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)
    return found


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    found.is_furnished = False  # as on the machine of a new user
    shutil.copytree(ROOT / "examples" / "shout", tmp_path, dirs_exist_ok=True)
    yield found
    found.end()


def test_the_tour_of_the_readme_works_as_it_is_written(fleet: Fleet) -> None:
    (tour,) = [block for block in blocks("README.md", "sh") if "cd examples/shout" in block]
    commands = [
        shlex.split(line, comments=True)[1:]
        for line in tour.splitlines()
        if line.startswith("nightshift ")
    ]
    assert len(commands) == 5
    for command in commands:
        done = fleet.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr, logs(fleet.folder))
    lines = (fleet.folder / "all.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert "A SMALL STEP" in lines[0]


QUERIES = [*blocks("docs/sql.md", "sql"), *blocks("docs/operations.md", "sql")]


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_every_query_of_the_page_is_answered(ledger: Ledger, query: str) -> None:
    with ledger.transaction() as connection:
        connection.execute(text(query.replace(":", "\\:"))).all()


def test_the_page_describes_every_column_of_the_views(ledger: Ledger) -> None:
    page = (ROOT / "docs" / "sql.md").read_text()
    with ledger.transaction() as connection:
        columns = connection.execute(
            text("""
                SELECT table_name, column_name FROM information_schema.columns
                WHERE table_name IN ('job_progress', 'failed_rows', 'worker_status', 'pool_demand',
                                     'job_costs', 'job_demand')
            """)
        ).all()
    assert len(columns) > 40
    assert [each for each in columns if f"`{each.column_name}`" not in page] == []
