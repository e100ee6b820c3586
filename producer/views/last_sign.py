"""Signs of life of a job: the age of the last one, and the load that it waits for."""

from rich.text import Text

from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import workers
from nightshift.producer.advice.advice import load_log
from nightshift.producer.advice.here import Here
from nightshift.producer.views.rates import Values


def age(seconds: float | None) -> str:
    """8 s, 3 min, 2 h: how long ago something was, in whole units; a dash where unknown."""
    if seconds is None:
        return "—"
    units = ((86_400, "d"), (3_600, "h"), (60, "min"))
    size, unit = next((each for each in units if seconds >= each[0]), (1, "s"))
    return f"{seconds // size:.0f} {unit}"


def loading(row: Values) -> str | None:
    """As `loading MODEL (1:20)`, while nothing but the load of its engine goes on for a job; from a minute on with
    the place where its steps can be read.
    """
    seconds = row["loading_seconds"]
    if seconds is None or row["status"] != "running":
        return None
    minutes, rest = divmod(max(0, int(seconds)), 60)
    log = row.get("loading_log") if minutes else None
    return f"loading {row['model']} ({minutes}:{rest:02})" + (f", {log}" if log else "")


def with_load_log(connection: Connection, row: Values, here: Here) -> Values:
    """Return the row with `loading_log`, the log of the load, if its engine is being loaded."""
    if row["loading_seconds"] is None:
        return row
    return {**row, "loading_log": load_log(here, workers.loading_hosts(connection, row["job"]))}


def place(row: Values) -> Text:
    """Where a job is, and when there was a last sign of it."""
    text = Text(f"pool {row['pool']}   priority {row['priority']}   last sign ", "bright_black")
    since = row["seconds_since_sign"]
    return text.append("none yet" if since is None else f"{age(since)} ago")
