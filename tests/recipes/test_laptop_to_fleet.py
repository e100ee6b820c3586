"""docs/recipes/laptop-to-fleet.md"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_the_file_of_the_laptop_runs_on_a_fleet_of_two_workers(
    recipe: Callable[..., Recipe],
    fresh_database: Callable[..., str],
    redis_url: str,
    tmp_path: Path,
) -> None:
    page = recipe(
        "laptop-to-fleet",
        {
            "postgresql://postgres:secret@db.example/nightshift": fresh_database(migrated=False),
            "redis://:secret@db.example:6379/0": redis_url,
            "/mnt/shared/tickets": tmp_path / "shared",
        },
    )
    said = page.follow()
    assert "50 done, 0 failed" in said
    rows = [
        json.loads(line) for line in (tmp_path / "shared/labelled.jsonl").read_text().splitlines()
    ]
    assert [row["id"] for row in rows] == [f"t{number}" for number in range(1, 1001)]
    assert {row["language"] for row in rows} == {"en"}
