"""docs/recipes/budget.md"""

import re
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_a_job_stops_at_its_budget_and_goes_on_with_more(recipe: Callable[..., Recipe]) -> None:
    page = recipe("budget")
    output = page.follow()
    stopped = re.search(r"rows +(\d+) done, 0 failed, (\d+) unfinished", output)
    assert stopped is not None
    assert 0 < int(stopped[1]) < 400
    assert int(stopped[2]) > 0
    job = page.status("receipts")
    assert (job["status"], job["rows_done"]) == ("completed", 400)
    # 400 rows of 20 ms are 8 s, which cost more than the first budget.
    assert job["cost"] > 3
