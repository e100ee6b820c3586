"""Numbers that follow from a row of `job_progress`, and the row as plain JSON."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from nightshift.common.states import BY_SERVER
from nightshift.common.text import counted, plural

Values = Mapping[Any, Any]
"""A row of a view of the ledger, by column."""


def rows_over(row: Values) -> int:
    """Rows that have an answer or an error, also those that a worker has not committed yet."""
    committed: int = row["rows_done"] + row["rows_failed"]
    uncommitted: int = row.get("rows_done_uncommitted", 0) + row.get("rows_failed_uncommitted", 0)
    return committed + uncommitted


def overall_rate(row: Values) -> float | None:
    """Rows a second over the time at work; None for a job that is not over."""
    seconds, over = elapsed_seconds(row), rows_over(row)
    return over / seconds if seconds and over else None


def elapsed_seconds(row: Values) -> float | None:
    """Seconds in which somebody worked on a job that is over, without pauses and times without a worker;
    from the first claim to the end where nobody has counted them. None for a job that is not over.
    """
    if row["started_at"] is None or row["finished_at"] is None:
        return None
    worked: float | None = row.get("worked_seconds")
    if worked is not None:
        return worked
    took: timedelta = row["finished_at"] - row["started_at"]
    return took.total_seconds()


def as_json(row: Values) -> dict[str, Any]:
    """The object of `status --json`: every column of the view, null where unknown.

    The view has no rate for a job that is over: its overall rate stands there.
    """
    values = plain(row)
    if values["rows_per_second"] is None and (rate := overall_rate(row)) is not None:
        values["rows_per_second"] = round(rate, 3)
    return values


PACE = (
    "rows_per_second",
    "rows_per_second_low",
    "rows_per_second_high",
    "output_tokens_per_second",
    "eta_seconds",
    "eta_seconds_low",
    "eta_seconds_high",
)
"""Columns of job_progress that say how fast a job is, and when it ends."""


def without_pace(row: Values) -> Values:
    """Return a row that was read before an outage of Postgres, without the figures that are unknown now."""
    return {**row, **dict.fromkeys(PACE)}


def plain(row: Values) -> dict[str, Any]:
    """A row with numbers and times as JSON has them."""
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return getattr(value, "as_json", value)


def thoughts(row: Values) -> str:
    """How many of the output tokens are thoughts, to be put behind their number; empty without any."""
    found = row.get("reasoning_tokens")
    return f" ({found:,} of them thoughts)" if found else ""


def answering(row: Values) -> str | None:
    """What the first load of a job's model found about its answers, in words; None for nothing to say."""
    found = row.get("resolved") or {}
    said = []
    family = found.get("thinking")
    if family and family != BY_SERVER:
        said.append(f"without their thoughts, as {family} marks these")
    if longest := found.get("max_tokens"):
        said.append(
            f"at most {counted(longest, 'token')}: sampling.max_tokens names another number"
        )
    return "; ".join(said) or None


def saved(row: Values) -> list[str]:
    """What rows of a job had in common, in words: answers, and the beginnings of prompts."""
    said = []
    if row.get("cached_tokens"):
        said.append(f"cached {100 * row['cached_fraction']:.0f} % of prompt tokens")
    if row.get("rows_shared"):
        said.append(
            f"{counted(row['rows_shared'], 'row')} {plural(row['rows_shared'], 'has', 'have')} the answer of an equal one"
        )
    return said
