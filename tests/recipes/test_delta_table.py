"""docs/recipes/delta-table.md"""

from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from tests.support.example import EXAMPLES
from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow

HUB = "cardiffnlp/twitter-roberta-base-sentiment-latest"


def test_the_answers_of_a_job_are_a_version_of_a_delta_table(
    recipe: Callable[..., Recipe],
) -> None:
    page = recipe("delta-table", {HUB: EXAMPLES / "sentiment" / "model"})
    page.follow()
    table = DeltaTable(page.folder / "lake" / "sentiment")
    assert table.version() == 0
    rows = {row["review"]: row for row in table.to_pyarrow_table().to_pylist()}
    assert {key: row["label"] for key, row in rows.items()} == {
        "r1": "positive",
        "r2": "negative",
        "r3": "neutral",
    }
    assert {row["product"] for row in rows.values()} == {"lamp", "kettle", "desk"}
    assert all(row["error"] is None for row in rows.values())
