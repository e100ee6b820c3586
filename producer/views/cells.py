"""What tables are made of: cells, bars, empty tables."""

import math
from datetime import timedelta

from rich import box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nightshift.common.ledger.queries import job_pace
from nightshift.producer.views.rates import Values, rows_over

STATE_STYLES = {
    "running": "cyan",
    "at work": "cyan",
    "waits": "yellow",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "ready": "green",
    "loading": "yellow",
    "draining": "yellow",
    "done": "green",
    "lost": "red",
}


def duration(seconds: float | None) -> str:
    """0:01:30; a dash where unknown."""
    return "—" if seconds is None else str(timedelta(seconds=round(seconds)))


def eta(row: Values) -> str:
    """Return the time to the end of a job with its bounds, such as "0:12:00 (0:10:00 to 0:15:00)"."""
    found = job_pace.pace(row)
    if found is None or found.eta is None:
        return duration(None)
    likely, low = duration(found.eta.likely), duration(found.eta.low)
    if found.eta.high == math.inf:
        return f"{likely} (at least {low})"
    high = duration(found.eta.high)
    return likely if low == high else f"{likely} ({low} to {high})"


def progress_bar(row: Values, width: int) -> ProgressBar:
    """The rows that are over, of all."""
    return ProgressBar(total=row["rows_total"] or 1, completed=rows_over(row), width=width)


def percent(row: Values) -> str:
    """Rounded down: 100 % means that no row is left."""
    return f"{100 * rows_over(row) // row['rows_total']} %" if row["rows_total"] else "0 %"


def state(name: str) -> Text:
    """A state in its color."""
    return Text(name, STATE_STYLES.get(name, ""))


def job_state(row: Values) -> Text:
    """Return the state of a job, as people see it; a watched job that has nothing to do waits for files."""
    standing = row.get("standing")
    if standing is not None and standing.kind == "waits_for_files":
        return Text("waits for files", "cyan")
    return state(row["status"] if standing is None else standing.word)


def failed(count: int, unit: str = "") -> Text:
    """A number of failed rows, red unless it is 0."""
    return Text(f"{count:,}{unit}", "red" if count else "bright_black")


def number(value: float | None) -> str:
    """One digit behind the point; a dash where unknown."""
    return "—" if value is None else f"{value:,.1f}"


def fact_grid() -> Table:
    """An empty grid for pairs of a label and a value."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column()
    return grid


def list_table(*columns: str) -> Table:
    """An empty table for one line an entry."""
    return Table(
        *columns,
        box=box.SIMPLE_HEAD,
        header_style="bright_black",
        pad_edge=False,
        show_edge=False,
    )
