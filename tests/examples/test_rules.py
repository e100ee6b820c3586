"""examples/rules: a class that is made once a process, and typed columns."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.example import Example

pytestmark = pytest.mark.slow


def test_tickets_are_routed_by_rules_that_are_read_once(example: Callable[[str], Example]) -> None:
    rules = example("rules")
    rules.nightshift("run", "job.yaml")
    table = ds.dataset(rules.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert table.schema.field("urgency").type == pa.float32()
    assert table.schema.field("matched").type.equals(pa.list_(pa.string()))
    rows = table.to_pylist()
    assert [row["team"] for row in rows] == [
        "billing",
        "delivery",
        "technical",
        "front desk",
        "delivery",
        "billing",
        "technical",
        "front desk",
    ]
    assert rows[0]["matched"] == ["charged", "refund"]
    assert [row["urgency"] for row in rows] == [1.5, 0, 0, 0, 1.0, 0, 2.5, 0]
    assert rows[4]["counts"] == {"words": 4, "exclamations": 2}
    assert all(row["error"] is None for row in rows)
    rules.nightshift("verify", "tickets")
    assert "front desk" in rules.nightshift("sample", "tickets", "-n", "8")
