"""docs/recipes/spot-machines.md"""

import json
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_machines_that_vanish_lose_no_row_and_those_with_notice_no_work(
    on_fleet: Callable[..., Recipe],
) -> None:
    page = on_fleet("spot-machines", {"spot-a": "spot-a", "spot-b": "spot-b", "spot-c": "spot-c"})
    page.follow()
    found = json.loads(page.nightshift("history", "tickets", "-n", "0", "--json"))
    outcomes = defaultdict(set)
    for attempt in found["attempts"]:
        outcomes[attempt["host"]].add(attempt["outcome"])
    assert sorted(outcomes) == ["spot-a", "spot-b", "spot-c"]
    assert outcomes["spot-a"] <= {"done", "split", "released"}
    assert "lost" in outcomes["spot-b"]
    job = page.status("tickets")
    assert (job["rows_done"], job["rows_failed"]) == (600, 0)
