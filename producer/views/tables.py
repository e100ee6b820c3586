"""Jobs and workers as rich tables and lines, made of rows of the ledger's views."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nightshift.common.ledger.fleet.outages import Outage
from nightshift.common.text import (
    counted,
    counted_batches,
    plural,
)
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.views import facts
from nightshift.producer.views.cells import (
    duration,
    eta,
    fact_grid,
    failed,
    job_state,
    list_table,
    number,
    percent,
    progress_bar,
    state,
)
from nightshift.producer.views.last_sign import age, loading, place
from nightshift.producer.views.next_steps import next_steps
from nightshift.producer.views.rates import (
    Values,
    overall_rate,
    rows_over,
    saved,
    thoughts,
)

WIDE_COLUMNS = 110
"""Width from which a table of jobs has room for bars or output directories."""


def job(
    row: Values,
    workers: Sequence[Values],
    *,
    closing: bool = False,
    watching: Sequence[str] = (),
    outages: Sequence[Outage] = (),
    starting: bool = False,
) -> RenderableType:
    """The live view of one job: bar, rates, batches, workers; what it waits for, unless its worker is still
    `starting`; and what is said of a watched one.
    """
    if starting:
        row = {**row, "standing": None}
    parts: list[RenderableType] = [
        _title(row),
        place(row),
        _bar(row),
        Text(STARTING, "yellow")
        if starting
        else _pace(row, closing=closing, stalled=row["stalled"]),
        *(Text(each.sentence(), "red") for each in outages),
        *_deadline(row),
        _batches(row),
    ]
    for fact in facts.of_job(row):
        if fact.name in LIVE:
            parts.append(Text(f"{fact.name} {fact.text}", "bright_black"))
        elif fact.warns and fact.name != "deadline":
            parts.append(Text(fact.text, "yellow"))
    parts += [Text(line, "yellow" if place else "cyan") for place, line in enumerate(watching)]
    if why := waits(row):
        parts.append(Text(why, "yellow"))
    if workers:
        parts += ["", worker_table(workers)]
    elif not (why or starting or closing) and row["status"] == "running" and open_batches(row):
        parts.append(Text("no worker has this engine yet", "bright_black"))
    return Group(*parts)


STARTING = "the reaper and the worker are starting"

LIVE = ("answers", "table")
"""Facts of the live view that are no warnings; the others have lines of their own."""

SAID_ELSEWHERE = ("loading", "waits_for_files", "storage_away", "rate_away", "server_away")
"""Kinds of reasons that a line of their own says."""


def waits(row: Values) -> str | None:
    """Why nothing of a job moves, or what of it needs a person; None where nothing is to say, or a line of its own
    says so.
    """
    standing = row.get("standing")
    if standing is None or standing.kind in SAID_ELSEWHERE or row["status"] != "running":
        return None
    if standing.word == "waits":
        return f"waits: {standing.sentence}"
    return str(standing.sentence) if standing.needs_person else None


MOST_REASONS = 10
"""Lines below a table of jobs."""


def reasons(rows: Sequence[Values]) -> list[Text]:
    """A line for each job that needs a person, then for each that waits; the first MOST_REASONS of them."""
    found = [row for row in rows if row.get("standing") is not None]
    needing = [row for row in found if row["standing"].needs_person]
    waiting = [row for row in found if row not in needing and waits(row)]
    lines = [
        Text(f"job {row['job']} ({row['name']}): {row['standing'].sentence}", style)
        for rows, style in ((needing, "red"), (waiting, "yellow"))
        for row in rows
    ]
    more = len(lines) - MOST_REASONS
    rest = (
        [
            Text(
                f"{counted(more, 'more job')} {plural(more, 'waits, or needs', 'wait, or need')} a person",
                "yellow",
            )
        ]
        if more > 0
        else []
    )
    return [*lines[:MOST_REASONS], *rest]


def open_batches(row: Values) -> int:
    """Batches that are not over."""
    return int(row["batches_pending"] + row["batches_queued"] + row["batches_leased"])


def status(
    row: Values,
    workers: Sequence[Values],
    set_aside: Sequence[Values] = (),
    backing_off: Values | None = None,
    watching: Sequence[str] = (),
    here: Here = FLEET,
    outages: Sequence[Outage] = (),
) -> RenderableType:
    """The live view of a job that is running or paused, else its summary."""
    if row["status"] not in ("running", "paused"):
        return summary(row, here)
    own, aside = (
        [each for each in found if each["pool"] == row["pool"]] for found in (workers, set_aside)
    )
    return Group(
        job(row, own, watching=watching, outages=outages),
        *_backing_off(backing_off),
        *_machines_set_aside(aside),
    )


def line(row: Values, outages: Sequence[Outage] = ()) -> str:
    """The state of a job as one plain line, for logs."""
    parts = [
        f"{row['name']}: {rows_over(row):,} of {counted(row['rows_total'], 'row')} ({percent(row)})"
    ]
    if loads := loading(row):
        parts.append(loads)
    if row["rows_failed"]:
        parts.append(f"{row['rows_failed']:,} failed")
    parts += [each.sentence() for each in outages]
    if row["rows_per_second"] is not None:
        parts.append(f"{row['rows_per_second']:,.1f} rows/s")
    if row["eta_seconds"] is not None:
        parts.append(f"{eta(row)} to go")
    if row["cost"] is not None:
        parts.append(f"cost {facts.cost(row)}")
    if row.get("deadline") is not None and row["status"] == "running":
        parts.append(row["deadline"].text)
    if row["status"] != "running":
        parts.append(NO_ANSWER if without_answer(row) else str(row["status"]))
    if why := waits(row):
        parts.append(why)
    if row["remark"] and not row["finished_at"]:
        parts.append(row["remark"])
    return ", ".join(parts)


def facts_of_line(row: Values, outages: Sequence[Outage] = ()) -> tuple[object, ...]:
    """What of the line is no figure of speed or time; of a load the minutes."""
    loads = row["loading_seconds"] if loading(row) else None
    return (
        rows_over(row),
        row["rows_failed"],
        row["status"],
        waits(row),
        None if row["finished_at"] else row["remark"],
        tuple(each.brief() for each in outages),
        None if loads is None else int(loads // 60),
    )


NO_ANSWER = "no row has an answer"


def without_answer(row: Values) -> bool:
    """Whether the job is completed, and every row has failed."""
    return row["status"] == "completed" and bool(row["rows_failed"]) and not row["rows_done"]


def summary(row: Values, here: Here = FLEET, *, ran: bool = True) -> RenderableType:
    """How a job ended: rows, tokens, rate, output, and the command that continues the job. The figures of speed
    are left out where nothing `ran` now.
    """
    table = fact_grid()
    table.add_row("rows", _rows_ended(row))
    for fact in facts.named(facts.of_job(row), without=() if ran else facts.SPEED):
        style = "yellow" if fact.warns else "bold" if fact.name == "output" else ""
        table.add_row(fact.name, Text(fact.text, style))
    for at, advice in enumerate(next_steps(row, here)):
        table.add_row("" if at else "next", Text(advice))
    return Group(_title(row, Text(NO_ANSWER, "red") if without_answer(row) else None), table)


def _rows_ended(row: Values) -> Text:
    rows = Text(f"{row['rows_done']:,} done")
    rows.append(f", {row['rows_failed']:,} failed", "red" if row["rows_failed"] else "")
    if kinds := row.get("error_kinds"):
        rows.append(f" ({', '.join(f'{count:,} {kind}' for kind, count in kinds.items())})", "red")
    if uncommitted := rows_over(row) - row["rows_done"] - row["rows_failed"]:
        rows.append(f", {uncommitted:,} not committed yet", "yellow")
    if left := row["rows_total"] - rows_over(row):
        # Not "never ran": some may have been sent to an engine, and their cost counts.
        rows.append(f", {left:,} unfinished", "yellow")
    return rows


def overview(
    rows: Sequence[Values],
    workers: Sequence[Values],
    set_aside: Sequence[Values] = (),
    outages: Sequence[Outage] = (),
) -> RenderableType:
    """Every job with a bar, what jobs wait for, then every worker, then every machine that is set aside."""
    if not rows:
        return Text("no jobs yet", "bright_black")
    below = worker_table(workers) if workers else Text("no workers", "bright_black")
    table = JobTable(rows, bars=True)
    said = [*reasons(rows), *away(outages)]
    return Group(table, *said, "", below, *_machines_set_aside(set_aside))


def away(outages: Sequence[Outage]) -> list[Text]:
    """What jobs wait for, one line each."""
    return [Text(f"job {each.job_id} ({each.name}): {each.sentence()}", "red") for each in outages]


@dataclass(frozen=True, slots=True)
class JobTable:
    """One line a job, newest first. Costs have a column where any job has a price, deadlines where any
    job has one; bars take the place of output directories. A narrow terminal has neither.
    """

    rows: Sequence[Values]
    bars: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _job_table(self.rows, bars=self.bars, narrow=options.max_width < WIDE_COLUMNS)


def _job_table(rows: Sequence[Values], *, bars: bool, narrow: bool) -> Table:
    table = list_table()
    if narrow:
        table.padding = (0, 1, 0, 0)
    columns = list(_columns(rows, bars=bars and not narrow, outputs=not bars and not narrow))
    for column in columns:
        table.add_column(column.title, **column.style)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table of jobs: its title, what stands there of a job, and the arguments of rich."""

    title: str
    cell: Callable[[Values], RenderableType]
    style: Mapping[str, Any]


_FOLDED = {"overflow": "fold"}
_RIGHT = {"justify": "right", "no_wrap": True}


def _columns(rows: Sequence[Values], *, bars: bool, outputs: bool) -> Iterator[_Column]:
    priced = any(row["cost"] is not None for row in rows)
    due = any(row.get("deadline") is not None for row in rows)
    yield _Column("job", lambda row: str(row["job"]), {"justify": "right"})
    yield _Column("name", lambda row: escape(row["name"]), _FOLDED)
    yield _Column("status", job_state, {"no_wrap": True})
    yield _Column("pool", lambda row: escape(row["pool"]), _FOLDED)
    yield _Column("prio", lambda row: str(row["priority"]), _RIGHT)
    if bars:
        yield _Column("", lambda row: progress_bar(row, 12 if priced else 24), {})
    yield _Column("sign", lambda row: age(row["seconds_since_sign"]), _RIGHT)
    yield _Column("rows", lambda row: f"{rows_over(row):,}/{row['rows_total']:,}", _RIGHT)
    yield _Column("failed", lambda row: failed(row["rows_failed"]), _RIGHT)
    yield _Column("rows/s", lambda row: number(_rate(row)), _RIGHT)
    yield _Column("ETA", lambda row: duration(row["eta_seconds"]), _RIGHT)
    if priced:
        yield _Column("cost", _cost, _RIGHT)
    if due:
        yield _Column("deadline", _brief_deadline, {})
    if outputs:
        yield _Column("output", lambda row: escape(row["output_uri"]), _FOLDED)


def _rate(row: Values) -> float | None:
    """Rows per second: now while the job runs, else over all of its time."""
    return row["rows_per_second"] if row["status"] == "running" else overall_rate(row)


def _cost(row: Values) -> str:
    return "—" if row["cost"] is None else facts.cost(row)


def _brief_deadline(row: Values) -> RenderableType:
    return row["deadline"].brief if row.get("deadline") else "—"


def worker_table(workers: Sequence[Values]) -> Table:
    """One line a worker child."""
    table = list_table("worker", "pool", "engine", "state", "holds", "seen")
    for row in workers:
        engine = f"{row['engine']} {row['engine_version']}" if row["engine"] else "—"
        table.add_row(
            escape(f"{row['host']} · slot {row['slot']}"),
            escape(row["pool"]),
            escape(engine),
            state(row["state"]),
            f"{counted_batches(row['batches_leased'])}, {counted(row['rows_leased'], 'row')}",
            f"{float(row['seconds_since_seen']):.0f} s ago",
        )
    return table


def _backing_off(found: Values | None) -> list[RenderableType]:
    """One line where batches wait after an error."""
    if found is None or not found["batches"]:
        return []
    count = found["batches"]
    which = f"{counted_batches(count)} {plural(count, 'waits', 'wait')}"
    left = duration(max(0, found["seconds"]))
    return [Text(f"{which} after an error, for {left} at most: {found['error']}", "yellow")]


def _machines_set_aside(machines: Sequence[Values]) -> list[RenderableType]:
    """One line for each machine and engine that it could not load; nothing without any."""
    if not machines:
        return []
    table = list_table("set aside", "engine", "failed", "next try", "because")
    for row in machines:
        table.add_row(
            escape(row["host"]),
            row["engine_key"],
            f"{counted(row['failures'], 'time')}",
            f"in {float(row['seconds_left']):.0f} s",
            escape(row["error"]),
        )
    return ["", table]


def _title(row: Values, state: Text | None = None) -> Text:
    title = Text(row["name"], "bold")
    title.append(f"  job {row['job']}", "not bold")
    title.append("  ")
    return title.append_text(job_state(row) if state is None else state)


def _bar(row: Values) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        progress_bar(row, 44),
        Text(f"{rows_over(row):,} of {counted(row['rows_total'], 'row')}"),
        Text(percent(row), "bold"),
        failed(row["rows_failed"], " failed"),
    )
    return grid


def _pace(row: Values, *, closing: bool, stalled: bool = False) -> Text:
    if closing:
        return Text("every row is done, the files are being put in place", "green")
    if loads := loading(row):
        return Text(loads, "yellow")
    if stalled:
        return Text("stalled until what it waits for is back", "red")
    text = Text(f"{number(row['rows_per_second'])} rows/s")
    if row["output_tokens"]:
        text.append(f"   {number(row['output_tokens_per_second'])} tokens/s")
    text.append(f"   {eta(row)} to go")
    if row["prompt_tokens"]:
        tokens = f"{counted(row['prompt_tokens'], 'token')} in, {row['output_tokens']:,} out"
        text.append(f"   {tokens}{thoughts(row)}", "bright_black")
    for said in saved(row):
        text.append(f"   {said}", "bright_black")
    if row["cost"] is not None:
        text.append(f"   cost {facts.cost(row)}")
    return text


def _deadline(row: Values) -> list[Text]:
    """One line for a job with a deadline: when, and what is expected."""
    if (found := row.get("deadline")) is None:
        return []
    text = Text(f"finish by {found.finish_by:%Y-%m-%d %H:%M}   ")
    return [text.append(found.text, "green" if found.text == "on time" else "yellow")]


def _batches(row: Values) -> Text:
    text = Text("batches ", "bright_black")
    for name in ("pending", "queued", "leased", "done", "dead"):
        count = row[f"batches_{name}"]
        loud = "red" if name == "dead" and count else "bright_black" if not count else ""
        text.append(f"  {count:,} {name}", loud)
    return text
