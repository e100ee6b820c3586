"""Recipes as their readers follow them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.recipe import RECIPES, Recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Callable[..., Recipe]]:
    """`recipe(name, stand_ins)` is docs/recipes/NAME.md and an empty folder; what the page starts ends
    with the test.
    """
    opened: list[Recipe] = []

    def open_page(name: str, stand_ins: dict[str, object] | None = None) -> Recipe:
        opened.append(Recipe(RECIPES / f"{name}.md", tmp_path / name, stand_ins or {}))
        return opened[-1]

    yield open_page
    for each in opened:
        each.end()
