"""Recipes as their readers follow them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.recipe import RECIPES, Recipe


@pytest.fixture
def recipe(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Recipe]]:
    """`recipe(name, stand_ins)` is docs/recipes/NAME.md, or the page at a path, and an empty folder; what
    the page starts ends with the test.
    """
    opened: list[Recipe] = []
    is_vllm = request.node.get_closest_marker("vllm") is not None

    def open_page(name: str | Path, stand_ins: dict[str, object] | None = None) -> Recipe:
        page = RECIPES / f"{name}.md" if isinstance(name, str) else name
        opened.append(Recipe(page, tmp_path / page.stem, stand_ins or {}))
        if is_vllm:
            opened[-1].environment |= warm.IN_COMMANDS
        return opened[-1]

    yield open_page
    for each in opened:
        each.end()


@pytest.fixture
def on_fleet(
    recipe: Callable[..., Recipe], database_url: str, redis_url: str
) -> Callable[..., Recipe]:
    """As `recipe`, with a fleet that has a reaper: its two addresses are in the environment, and its
    workers may run rules.py.
    """

    def open_page(name: str, stand_ins: dict[str, object] | None = None) -> Recipe:
        page = recipe(name, stand_ins)
        page.environment |= {
            "NIGHTSHIFT_DATABASE_URL": database_url,
            "NIGHTSHIFT_BROKER_URL": redis_url,
            "NIGHTSHIFT_ALLOWED_MODULES": "rules",
            "NIGHTSHIFT_CALLABLE_PATHS": str(page.folder),
            "NIGHTSHIFT_LEASE_SECONDS": "6",
        }
        page.reaper()
        return page

    return open_page
