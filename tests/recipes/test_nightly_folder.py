"""docs/recipes/nightly-folder.md"""

import json
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_each_night_runs_the_rows_of_new_files_alone(recipe: Callable[..., Recipe]) -> None:
    page = recipe("nightly-folder")
    page.follow()
    rows = [json.loads(line) for line in (page.folder / "all.jsonl").read_text().splitlines()]
    assert [(row["id"], row["language"]) for row in rows] == [
        ("a1", "de"),
        ("a2", "en"),
        ("b1", "en"),
    ]
    second = json.loads((page.folder / "labelled/_generations/000002.json").read_text())
    assert (second["first_row"], second["stop_row"]) == (2, 3)
    found = json.loads(page.nightshift("history", "tickets", "--json"))
    assert found["outcomes"] == {"done": 2}
    page.nightshift("submit", "--append", "tickets")
    assert page.status("tickets")["rows_total"] == 3
