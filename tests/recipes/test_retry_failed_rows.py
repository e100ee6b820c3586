"""docs/recipes/retry-failed-rows.md"""

import json
from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow

WITHOUT_PRICE = [f"r{number}" for number in range(142, 1001, 142)]


def test_rows_that_failed_for_one_reason_run_again_and_no_others(
    recipe: Callable[..., Recipe],
) -> None:
    page = recipe("retry-failed-rows")
    page.follow()
    rows = [json.loads(line) for line in (page.folder / "all.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"r{number}" for number in range(1, 1001)]
    failed = {row["id"]: row for row in rows if row["error"] is not None}
    assert sorted(failed) == sorted(WITHOUT_PRICE)
    assert {row["cents"] for row in failed.values()} == {None}
    assert {row["cents"] for row in rows if row["id"] not in failed} == {1250}
    totals = page.status("receipts")
    assert (totals["rows_done"], totals["rows_failed"]) == (993, 7)
