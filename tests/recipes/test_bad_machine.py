"""docs/recipes/bad-machine.md"""

import json
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_a_machine_that_loads_no_engine_is_named_and_taken_out(
    on_fleet: Callable[..., Recipe],
) -> None:
    page = on_fleet("bad-machine", {"gpu-a": "gpu-a", "gpu-b": "gpu-b"})
    said = page.follow()
    after = said[said.index("400 done, 0 failed") :]
    assert "gpu-b" not in after[: after.index("host gpu-b: state")]
    found = json.loads(page.nightshift("history", "tickets", "-n", "0", "--json"))
    assert found["outcomes"] == {"done": 20}
