"""docs/recipes/slurm.md"""

from collections.abc import Callable

import pytest

from tests.support.recipe import ROOT, Recipe

pytestmark = pytest.mark.slow


def test_what_slurm_starts_on_a_node_is_a_worker_of_the_fleet(
    recipe: Callable[..., Recipe], fresh_database: Callable[..., str], redis_url: str
) -> None:
    page = recipe(
        "slurm",
        {
            "postgresql://postgres:secret@db.example/nightshift": fresh_database(migrated=False),
            "redis://:secret@db.example:6379/0": redis_url,
            "/path/to/nightshift": ROOT,
        },
    )
    page.follow()
    assert (page.folder / "worker.env").stat().st_mode & 0o777 == 0o600
    assert len((page.folder / "labelled.jsonl").read_text().splitlines()) == 1000
