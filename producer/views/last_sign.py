"""Signs of life of a job: the age of the last one, and the load that it waits for."""

from rich.text import Text

from nightshift.producer.views.rates import Values


def age(seconds: float | None) -> str:
    """8 s, 3 min, 2 h: how long ago something was, in whole units; a dash where unknown."""
    if seconds is None:
        return "—"
    units = ((86_400, "d"), (3_600, "h"), (60, "min"))
    size, unit = next((each for each in units if seconds >= each[0]), (1, "s"))
    return f"{seconds // size:.0f} {unit}"


def loading(row: Values) -> str | None:
    """As `loading MODEL (1:20)`, while nothing but the load of its engine goes on for a job."""
    seconds = row["loading_seconds"]
    if seconds is None or row["status"] != "running":
        return None
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"loading {row['model']} ({minutes}:{rest:02})"


def place(row: Values) -> Text:
    """Where a job is, and when there was a last sign of it."""
    text = Text(f"pool {row['pool']}   priority {row['priority']}   last sign ", "bright_black")
    since = row["seconds_since_sign"]
    return text.append("none yet" if since is None else f"{age(since)} ago")
