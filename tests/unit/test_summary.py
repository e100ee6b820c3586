"""The rows in the last report about a job add up."""

from typing import Any

import pytest

from nightshift.producer.views import tables

ROWS = {"rows_total": 30, "rows_done": 11, "rows_failed": 0}


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ({**ROWS, "rows_done": 30}, "30 done, 0 failed"),
        (ROWS, "11 done, 0 failed, 19 unfinished"),
        (
            {**ROWS, "rows_done": 0, "rows_done_uncommitted": 10, "rows_failed_uncommitted": 1},
            "0 done, 0 failed, 11 not committed yet, 19 unfinished",
        ),
        (
            {**ROWS, "rows_failed": 19, "error_kinds": {"bad_type": 19}},
            "11 done, 19 failed (19 bad_type)",
        ),
    ],
)
def test_the_rows_of_a_job_add_up(row: dict[str, Any], rows: str) -> None:
    assert tables._rows_ended(row).plain == rows
