"""What the log of a Delta table says of a part: bounds that hold for every row, or none."""

import io
import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.producer.tables.data_files import LAST_CHARACTER, statistics
from nightshift.producer.tables.delta import stats_of
from nightshift.producer.tables.table import DataFile

LONG = "word " * 100


def told(columns: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a file with two rows a row group."""
    table, sink = pa.table(columns), io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    footer = pq.read_metadata(sink)
    file = DataFile("x", 1, table.num_rows, *statistics(footer))
    found: dict[str, Any] = json.loads(stats_of(file, table.schema))
    return found


def bounds(values: Any) -> tuple[Any, Any] | None:
    found = told({"a": values})
    return None if "minValues" not in found else (found["minValues"]["a"], found["maxValues"]["a"])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([3, -7, None, None, 2**40], (-7, 2**40)),
        (pa.array([-1, 5], pa.int8()), (-1, 5)),
        ([True, None, False], (False, True)),
        (["b", "ä", "λ"], ("b", "λ")),
        ([LONG, "a"], ("a", LONG[:32] + LAST_CHARACTER)),
        ([LONG, "z"], (LONG[:32], "z")),
        (["x" * 32, None], ("x" * 32, "x" * 32)),
        # Nothing stands in the footer.
        ([LONG * 100, "a"], ("", LAST_CHARACTER)),
        ([date(1969, 12, 31), date(9999, 12, 31)], ("1969-12-31", "9999-12-31")),
        (
            [datetime(1969, 12, 31, 23, 59, 59, 999_001, UTC), datetime(2020, 1, 1, tzinfo=UTC)],
            ("1969-12-31T23:59:59.999Z", "2020-01-01T00:00:00.000Z"),
        ),
        (
            pa.array([datetime(2020, 1, 1, 0, 0, 0, 999_001)], pa.timestamp("us")),
            ("2020-01-01 00:00:00.999", "2020-01-01 00:00:01.000"),
        ),
        (pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us")), None),
        (pa.array([2**62], pa.timestamp("us")), None),
        ([1.5, 2.5], None),
        ([b"x"], ()),
        ([None, None, None], ()),
    ],
)
def test_bounds_are_not_above_the_least_value_nor_below_the_greatest(
    values: Any, wanted: tuple[Any, Any] | tuple[()] | None
) -> None:
    if wanted == ():
        assert told({"a": values}).get("minValues") == {}
    else:
        assert bounds(values) == wanted


def test_a_column_without_bounds_takes_them_from_the_others() -> None:
    found = told({"n": [1, None, 3], "share": [0.5, float("nan"), None]})
    assert found == {"numRecords": 3, "nullCount": {"n": 1, "share": 1}}


def test_columns_that_have_no_bounds_in_any_table_leave_the_others_theirs() -> None:
    found = told({"n": [1, 2], "list": [[1], [2]], "struct": [{"a": 1}, None], "none": [None] * 2})
    assert found["minValues"] == {"n": 1, "struct": {}}
    assert found["maxValues"] == {"n": 2, "struct": {}}
