"""A judge's verdict as a rich table; nothing here asks the ledger."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nightshift.producer.judge.judge import Verdict
from nightshift.producer.judge.scores import Tally


def verdict(found: Verdict) -> RenderableType:
    """Mean, standard errors, interval, how many rows that rests on, and the answers."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black")
    table.add_column()
    draw, tally = found.draw, found.tally
    title = Text(f"verdict on job {draw.job}", "bold")
    if tally is None:
        return Group(title, Text("there is no score: the judge's job did not come to its end"))
    table.add_row("score", _score(tally))
    if tally.interval is not None:
        low, high = tally.interval
        table.add_row("95 %", f"{low:.4g} to {high:.4g}, for rows like these")
    if tally.standard_error_here is not None and draw.rows < draw.population:
        within = f"± {tally.standard_error_here:.3g} as the mean of all {draw.population:,} answers"
        table.add_row("this job", within)
    rows = Text(f"{tally.count:,} scored of {draw.rows:,} judged, {draw.population:,} answered")
    if tally.unscored:
        rows.append(f", {tally.unscored:,} without a score in {found.column}", "red")
    if tally.failed:
        rows.append(f", {tally.failed:,} failed", "red")
    table.add_row("rows", rows)
    if tally.answers:
        said = ", ".join(f"{answer} {count:,}" for answer, count in _most(tally))
        table.add_row("answers", Text(said))
    return Group(title, table)


def _score(tally: Tally) -> Text:
    if not tally.count:
        return Text("none: no answer of the judge is a score", "red")
    text = Text(f"{tally.mean:.4g}", "bold")
    if tally.standard_error is not None:
        text.append(f" ± {tally.standard_error:.3g} (standard error)", "not bold")
    return text


def _most(tally: Tally) -> list[tuple[str, int]]:
    return [(answer[:60], count) for answer, count in list(tally.answers.items())[:12]]
