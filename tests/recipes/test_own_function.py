"""docs/recipes/own-function.md"""

import json
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe


@pytest.mark.slow
def test_a_function_of_ones_own_runs_over_every_row(recipe: Callable[..., Recipe]) -> None:
    page = recipe("own-function")
    page.follow()
    rows = [json.loads(line) for line in (page.folder / "all.jsonl").read_text().splitlines()]
    assert [row["language"] for row in rows] == ["de", "en", "en"]
