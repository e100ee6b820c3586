"""Rows of the ledger's views as rich tables and lines; nothing here asks the ledger."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nightshift.common.text import money
from nightshift.producer.verify.checks import Problem
from nightshift.producer.views.rates import Values, elapsed_seconds, overall_rate
from nightshift.producer.views.values import error_text, shown

STATE_STYLES = {
    "running": "cyan",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "ready": "green",
    "loading": "yellow",
    "draining": "yellow",
}


def job(row: Values, workers: Sequence[Values], *, closing: bool = False) -> RenderableType:
    """The live picture of one job: bar, rates, batches, workers."""
    parts: list[RenderableType] = [
        _title(row),
        _bar(row),
        _pace(row, closing=closing),
        _batches(row),
    ]
    if row["reason"]:
        parts.append(Text(row["reason"], "yellow"))
    if workers:
        parts += ["", worker_table(workers)]
    elif row["status"] == "running" and not closing:
        parts.append(Text("no worker has this engine yet", "bright_black"))
    return Group(*parts)


def status(row: Values, workers: Sequence[Values]) -> RenderableType:
    """One job as it stands: the live picture while it is open, else how it ended."""
    mine = [worker for worker in workers if worker["pool"] == row["pool"]]
    return job(row, mine) if row["status"] in ("running", "paused") else summary(row)


def line(row: Values) -> str:
    """The state of a job as one plain line, for logs."""
    over = row["rows_done"] + row["rows_failed"]
    said = [f"{row['name']}: {over:,} of {row['rows_total']:,} rows ({_percent(row)})"]
    if row["rows_failed"]:
        said.append(f"{row['rows_failed']:,} failed")
    if row["rows_per_second"] is not None:
        said.append(f"{row['rows_per_second']:,.1f} rows/s")
    if row["eta_seconds"] is not None:
        said.append(f"{duration(row['eta_seconds'])} to go")
    if row["cost"] is not None:
        said.append(f"cost {money(row['cost'])}")
    if row["status"] != "running":
        said.append(str(row["status"]))
    return ", ".join(said)


def summary(row: Values) -> RenderableType:
    """How a job ended: rows, tokens, rate, output, and the command that goes on."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black")
    table.add_column()
    rows = Text(f"{row['rows_done']:,} done")
    rows.append(f", {row['rows_failed']:,} failed", "red" if row["rows_failed"] else "")
    left = row["rows_total"] - row["rows_done"] - row["rows_failed"]
    if left:
        rows.append(f", {left:,} not run", "yellow")
    table.add_row("rows", rows)
    if row["prompt_tokens"] or row["output_tokens"]:
        table.add_row("tokens", f"{row['prompt_tokens']:,} in, {row['output_tokens']:,} out")
    rate, seconds = overall_rate(row), elapsed_seconds(row)
    if rate is not None and seconds is not None:
        table.add_row("rate", f"{rate:,.1f} rows/s over {duration(seconds)}")
    if row["engine_seconds"]:
        table.add_row("engines", f"{duration(row['engine_seconds'])} at work")
    if row["cost"] is not None:
        table.add_row("cost", money(row["cost"]))
    table.add_row("output", Text(row["output_uri"], "bold"))
    if row["reason"]:
        table.add_row("reason", Text(row["reason"], "yellow"))
    for advice in next_steps(row):
        table.add_row("next", Text(advice))
    return Group(_title(row), table)


def next_steps(row: Values) -> list[str]:
    """Commands that make sense now."""
    steps = []
    if row["status"] == "paused":
        more = " --budget MORE" if "limits.budget" in (row["reason"] or "") else ""
        steps.append(f"nightshift resume {row['job']}{more}    goes on")
    if row["rows_failed"]:
        steps.append(f"nightshift errors {row['job']}    the rows that failed, and why")
        if row["status"] != "cancelled":
            steps.append(f"nightshift retry {row['job']} --failed    runs them again")
    if row["status"] in ("failed", "cancelled"):
        steps.append("nightshift run … --out ANOTHER    starts afresh in another directory")
    return steps


def job_table(rows: Sequence[Values]) -> Table:
    """One line a job, newest first."""
    costs = _cost_column(rows)
    table = _table("job", "name", "status", "rows", "failed", "rows/s", "ETA", *costs, "output")
    for index in range(3, 7 + len(costs)):
        table.columns[index].justify = "right"
    table.columns[0].justify = "right"
    table.columns[-1].overflow = "fold"
    for row in rows:
        over = row["rows_done"] + row["rows_failed"]
        rate = row["rows_per_second"] if row["status"] == "running" else overall_rate(row)
        table.add_row(
            str(row["job"]),
            escape(row["name"]),
            _state(row["status"]),
            f"{over:,}/{row['rows_total']:,}",
            _failed(row["rows_failed"]),
            _number(rate),
            duration(row["eta_seconds"]),
            *(_cost(row) for _ in costs),
            escape(row["output_uri"]),
        )
    return table


def overview(rows: Sequence[Values], workers: Sequence[Values]) -> RenderableType:
    """Every job with a bar, then every worker."""
    if not rows:
        return Text("no jobs yet", "bright_black")
    costs = _cost_column(rows)
    table = _table("job", "name", "status", "", "rows", "failed", "rows/s", "ETA", *costs)
    for index in (0, *range(4, 8 + len(costs))):
        table.columns[index].justify = "right"
    table.columns[2].no_wrap = True
    bar_width = 12 if costs else 24
    for row in rows:
        over = row["rows_done"] + row["rows_failed"]
        rate = row["rows_per_second"] if row["status"] == "running" else overall_rate(row)
        table.add_row(
            str(row["job"]),
            escape(row["name"]),
            _state(row["status"]),
            ProgressBar(total=row["rows_total"] or 1, completed=over, width=bar_width),
            f"{over:,}/{row['rows_total']:,}",
            _failed(row["rows_failed"]),
            _number(rate),
            duration(row["eta_seconds"]),
            *(_cost(row) for _ in costs),
        )
    below = worker_table(workers) if workers else Text("no workers", "bright_black")
    return Group(table, "", below)


def worker_table(workers: Sequence[Values]) -> Table:
    """One line a worker child."""
    table = _table("worker", "pool", "engine", "state", "holds", "seen")
    for row in workers:
        engine = f"{row['engine']} {row['engine_version']}" if row["engine"] else "—"
        table.add_row(
            escape(f"{row['host']} · slot {row['slot']}"),
            escape(row["pool"]),
            escape(engine),
            _state(row["state"]),
            f"{row['batches_leased']:,} batches, {row['rows_leased']:,} rows",
            f"{float(row['seconds_since_seen']):.0f} s ago",
        )
    return table


def errors(rows: Sequence[Values], kinds: Mapping[str, int]) -> RenderableType:
    """Failed rows: where, which, why; then how many of each kind the job has in all."""
    if not kinds:
        return Text("no row has failed", "green")
    counts = Text("in all: ", "bright_black")
    counts.append(", ".join(f"{count:,} {kind}" for kind, count in kinds.items()), "default")
    return Group(_error_table(rows), counts) if rows else counts


def check(name: str, summary: str, problems: Sequence[Problem]) -> RenderableType:
    """One check of verify: an ok line, or a line for each of its problems."""
    if not problems:
        return Text.assemble(("ok   ", "green"), f"{name:<13}", (summary, "bright_black"))
    lines = [
        Text.assemble(("bad  ", "bold red"), f"{name:<13}", problem.message) for problem in problems
    ]
    return Group(*lines)


def _error_table(rows: Sequence[Values]) -> Table:
    table = _table("row", "id", "kind", "message")
    table.columns[0].justify = "right"
    table.columns[2].no_wrap = True
    table.columns[3].overflow = "fold"
    for row in rows:
        table.add_row(
            f"{row['row_index']:,}",
            escape(row["row_id"] or "—"),
            Text(row["kind"], "red"),
            escape(row["message"]),
        )
    return table


def sample_table(rows: Sequence[Values], inputs: Sequence[str], outputs: Sequence[str]) -> Table:
    """Input columns beside output columns; long texts are cut at the end."""
    table = _table("row")
    table.columns[0].justify = "right"
    table.columns[0].no_wrap = True
    table.show_lines = True
    for name in inputs:
        table.add_column(escape(name), overflow="fold", ratio=1)
    for name in outputs:
        table.add_column(escape(name), overflow="fold", ratio=1, style="cyan")
    for row in rows:
        table.add_row(f"{row['row_index']:,}", *(_cell(row, name) for name in [*inputs, *outputs]))
    return table


CELL_CHARACTERS = 200


def _cell(row: Values, name: str) -> Text:
    if name == "error":
        return Text(error_text(row["error"]), "red")
    return Text(shown(row.get(name), CELL_CHARACTERS))


def duration(seconds: float | None) -> str:
    """0:01:30; a dash where unknown."""
    return "—" if seconds is None else str(timedelta(seconds=round(seconds)))


def _cost_column(rows: Sequence[Values]) -> list[str]:
    """Only where a job has a price: without one it says nothing."""
    return ["cost"] if any(row["cost"] is not None for row in rows) else []


def _cost(row: Values) -> str:
    return "—" if row["cost"] is None else money(row["cost"])


def _title(row: Values) -> Text:
    title = Text(f"{row['name']}", "bold")
    title.append(f"  job {row['job']}", "not bold")
    title.append("  ")
    return title.append_text(_state(row["status"]))


def _bar(row: Values) -> Table:
    over = row["rows_done"] + row["rows_failed"]
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        ProgressBar(total=row["rows_total"] or 1, completed=over, width=44),
        Text(f"{over:,} of {row['rows_total']:,} rows"),
        Text(_percent(row), "bold"),
        _failed(row["rows_failed"], " failed"),
    )
    return grid


def _pace(row: Values, *, closing: bool) -> Text:
    if closing:
        return Text("every row is done, the files are being put in place", "green")
    text = Text(f"{_number(row['rows_per_second'])} rows/s")
    if row["output_tokens"]:
        text.append(f"   {_number(row['output_tokens_per_second'])} tokens/s")
    text.append(f"   {duration(row['eta_seconds'])} to go")
    if row["prompt_tokens"]:
        text.append(
            f"   {row['prompt_tokens']:,} tokens in, {row['output_tokens']:,} out", "bright_black"
        )
    if row["cost"] is not None:
        text.append(f"   cost {money(row['cost'])}")
    return text


def _batches(row: Values) -> Text:
    text = Text("batches ", "bright_black")
    for state in ("pending", "queued", "leased", "done", "dead"):
        count = row[f"batches_{state}"]
        loud = "red" if state == "dead" and count else "bright_black" if not count else ""
        text.append(f"  {count:,} {state}", loud)
    return text


def _percent(row: Values) -> str:
    over = row["rows_done"] + row["rows_failed"]
    # Rounded down: 100 % is said when nothing is left.
    return f"{100 * over // row['rows_total']} %" if row["rows_total"] else "0 %"


def _state(state: str) -> Text:
    return Text(state, STATE_STYLES.get(state, ""))


def _failed(count: int, unit: str = "") -> Text:
    return Text(f"{count:,}{unit}", "red" if count else "bright_black")


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:,.1f}"


def _table(*columns: str) -> Table:
    return Table(
        *columns,
        box=box.SIMPLE_HEAD,
        header_style="bright_black",
        pad_edge=False,
        show_edge=False,
    )
