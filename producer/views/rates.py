"""Numbers that follow from a row of `job_progress`, and the row as plain JSON."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

# A row of a view, as the ledger hands it out or as a dict.
Values = Mapping[Any, Any]


def overall_rate(row: Values) -> float | None:
    """Rows a second from the first claim to the end; None for a job that is not over."""
    seconds = elapsed_seconds(row)
    over = row["rows_done"] + row["rows_failed"]
    return over / seconds if seconds and over else None


def elapsed_seconds(row: Values) -> float | None:
    """From the first claim to the end of a job that is over."""
    if row["started_at"] is None or row["finished_at"] is None:
        return None
    took: timedelta = row["finished_at"] - row["started_at"]
    return took.total_seconds()


def as_json(row: Values) -> dict[str, Any]:
    """The object of `status --json`: every column of the view, null where unknown.

    The rate of a job that is over is its overall one, where the view has none any more.
    """
    values = {name: _plain(value) for name, value in row.items()}
    if values["rows_per_second"] is None and (rate := overall_rate(row)) is not None:
        values["rows_per_second"] = round(rate, 3)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value
