"""docs/recipes/leave-a-hosted-batch-api.md"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.models import MODEL, in_flags, in_yaml
from tests.support.recipe import Recipe
from tests.support.serve import free_port

pytestmark = pytest.mark.timeout(1200)

HUB = "Qwen/Qwen3-4B-Instruct-2507"


def answers(text: str) -> dict[str, str]:
    """The answer to each request of a file of results."""
    found: dict[str, Any] = {}
    for line in map(json.loads, text.splitlines()):
        message = line["response"]["body"]["choices"][0]["message"]
        found[line["custom_id"]] = message["content"]
    return found


def test_the_same_file_is_answered_by_a_command_and_by_a_server(
    recipe: Callable[..., Recipe],
) -> None:
    port = free_port()
    models = {f"--model {HUB}": in_flags(MODEL), f"model: {HUB}": in_yaml(MODEL)}
    page = recipe("leave-a-hosted-batch-api", {**models, "8080": port})
    page.environment["NIGHTSHIFT_SERVE_PORT"] = str(port)
    said = page.follow()
    wanted = {"r1": "positive", "r2": "negative"}
    assert answers((page.folder / "requests.results.jsonl").read_text()) == wanted
    served = [line for line in said.splitlines() if line.startswith('{"id"')]
    assert answers("\n".join(served)) == wanted
