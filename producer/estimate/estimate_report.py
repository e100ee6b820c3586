"""An estimate as a table, one line a figure with its range and its source, and as JSON."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nightshift.common.ranges import Range
from nightshift.common.text import counted, counted_batches, money
from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.estimate import Estimate
from nightshift.producer.views.cells import duration, fact_grid

BAR_WIDTH = 24


def render(made: Estimate) -> RenderableType:
    """The whole estimate; 80 columns are wide enough."""
    title = Text(made.spec.name, "bold")
    title.append("  estimate", "not bold bright_black")
    table = fact_grid()
    files = f", {counted(made.files, 'file')}" if made.files > 1 else ""
    batches = counted_batches(made.batches)
    table.add_row("rows", f"{made.rows:,} in {batches} of {made.spec.batch.rows:,}{files}")
    _prompts(table, made)
    _order(table, made)
    _answers(table, made)
    _speed(table, made)
    if made.cost is not None:
        cost = Text.assemble((_range_text(made.cost, money), "bold"))
        if made.spec.limits.budget is not None:
            cost.append(f"   limits.budget {money(made.spec.limits.budget)}", "bright_black")
        table.add_row("cost", cost)
    elif made.spec.engine.has_price:
        table.add_row("cost", Text("not known", "yellow"))
    notes = [Text(f"· {note}", "yellow") for note in made.notes]
    return Group(title, table, *notes)


def _prompts(table: Table, made: Estimate) -> None:
    found = made.prompts
    if len(found.lengths):
        unit = "characters / 4" if found.is_guess else "tokens"
        figures = "   ".join(f"{name} {value:,}" for name, value in found.percentiles.items())
        table.add_row("prompts", f"{figures} {unit}   of {counted(len(found.lengths), 'row')}")
        table.add_row("", _histogram(made))
        if made.prompt_tokens is not None:
            total = made.prompt_tokens.times(made.rows)
            table.add_row("", f"{_range_text(total, _whole)} tokens in all")
    if found.longest is not None:
        style = "red" if found.too_long else ""
        share = (
            f"{found.too_long:,} of {found.sampled:,} sampled rows" if found.too_long else "none"
        )
        table.add_row(
            "too long", Text(f"{share} for the model's {counted(found.longest, 'token')}", style)
        )
    if found.refused:
        text = f"{found.refused:,} of {found.sampled:,} sampled rows cannot be used: {found.why}"
        table.add_row("refused", Text(text, "red"))


def _order(table: Table, made: Estimate) -> None:
    found = made.order
    if found is None:
        return
    sorts = made.spec.batch.arrange == "prefix" or found.pays
    table.add_row(
        "order", "sorted by the beginnings of the requests" if sorts else "as in the dataset"
    )
    would = "saves" if sorts else "sorting would save"
    share = f"{would} about {100 * found.share:.0f} % of the prompt tokens"
    cache = f", in a prefix cache of {found.cache_tokens:,}"
    table.add_row("", Text(share + cache, "bright_black"))
    if made.order_cost is not None:
        room = decimal(made.order_cost.copy_bytes)
        took = duration(made.order_cost.seconds)
        cost = f"the pass takes about {took}, and a copy of at most {room} below the output"
        table.add_row("", Text(cost, "bright_black"))


def _histogram(made: Estimate) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="bright_black")
    grid.add_column()
    grid.add_column(justify="right", style="bright_black")
    bins = forecast.bins(made.prompts.lengths)
    most = max(count for _, _, count in bins)
    for low, high, count in bins:
        bounds = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        bar = Bar(most, 0, count, width=BAR_WIDTH, color="cyan")
        grid.add_row(bounds, bar, f"{count:,}")
    return grid


def _answers(table: Table, made: Estimate) -> None:
    if made.output_tokens is None or made.output_tokens.high:
        figures = Text("not known" if made.output_tokens is None else "")
        if made.output_tokens is not None:
            total = made.output_tokens.times(made.rows)
            figures.append(
                f"{_range_text(made.output_tokens, _short)} tokens a row, {_range_text(total, _whole)} in all"
            )
            if made.measured is not None and made.measured.thoughts:
                figures.append(f", about {_short(made.measured.thoughts)} a row of them thoughts")
        table.add_row("answers", figures)
        table.add_row("", Text(made.output_source, "bright_black"))


def _speed(table: Table, made: Estimate) -> None:
    measured = made.measured
    if measured is None or measured.pace is None:
        table.add_row("speed", Text("unknown: run `estimate --pilot 200`", "yellow"))
        return
    table.add_row("speed", f"{_range_text(measured.pace, _short)} rows/s an engine")
    table.add_row("", Text(f"{measured.source}, {counted(measured.rows, 'row')}", "bright_black"))
    if made.engine_seconds is not None and made.seconds is not None:
        hours = made.engine_seconds.times(1 / 3600)
        table.add_row("engines", f"{_most_text(hours, money)} hours of one engine")
        table.add_row("workers", f"{made.workers:,}, {made.workers_source}")
        table.add_row("time", _most_text(made.seconds, duration))
        if ends := _ends(made):
            table.add_row("finished", f"{_clock(made, ends)}, if it began now")


def _ends(made: Estimate) -> dict[str, datetime]:
    """Return when the job would be over if it began when the estimate was made, by bound; empty if that is not known, or
    later than calendars end.
    """
    if made.seconds is None:
        return {}
    found = asdict(made.seconds).items()
    try:
        return {
            name: made.made_at + timedelta(seconds=each) for name, each in found if each is not None
        }
    except OverflowError:
        return {}


def _clock(made: Estimate, ends: Mapping[str, datetime]) -> str:
    low, high = ends["low"], ends["high"]
    pattern = "%H:%M" if high.date() == made.made_at.date() else "%Y-%m-%d %H:%M"
    first, last = f"{low:{pattern}}", f"{high:{pattern}}"
    return first if first == last else f"{first} to {last}"


def _range_text(value: Range, text: Callable[[float], str]) -> str:
    """The likely and its bounds; without a likely that is not known, or bounds that are the same or infinite."""
    if math.isinf(value.high):
        return f"at least {text(value.low)}"
    low, high = text(value.low), text(value.high)
    if value.likely is None:
        return f"{low} to {high}"
    likely = text(value.likely)
    return likely if low == high else f"{likely} ({low} to {high})"


def _most_text(value: Range, text: Callable[[float], str]) -> str:
    """A range of times; of one that begins at 0 the upper bound alone."""
    return _range_text(value, text) if value.low else f"at most {text(value.high)}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def as_json(made: Estimate) -> dict[str, Any]:
    """The same figures as the table; null where one is not known, such as the `high` of a speed of which only
    the least is.
    """
    found = made.prompts
    lengths = found.lengths
    measured = made.measured
    return {
        "name": made.spec.name,
        "rows": made.rows,
        "batches": made.batches,
        "batch_rows": made.spec.batch.rows,
        "files": made.files,
        "prompts": {
            "sampled": found.sampled,
            "refused": found.refused,
            "why": found.why or None,
            "unit": None if not len(lengths) else "characters/4" if found.is_guess else "tokens",
            **found.percentiles,
            "longest_allowed": found.longest,
            "too_long": found.too_long,
            "histogram": [list(each) for each in forecast.bins(lengths)] if len(lengths) else [],
        },
        "order": None
        if made.order is None
        else {
            "arranges": made.spec.batch.arrange == "prefix" or made.order.pays,
            "saved_prompt_tokens": made.order.saved_tokens,
            "saved_share": round(made.order.share, 3),
            "cache_tokens": made.order.cache_tokens,
            "pass_seconds": made.order_cost and round(made.order_cost.seconds, 1),
            "copy_bytes": made.order_cost and made.order_cost.copy_bytes,
        },
        "prompt_tokens_a_row": _range(made.prompt_tokens),
        "output_tokens_a_row": _range(made.output_tokens),
        "output_tokens_from": made.output_source,
        "reasoning_tokens_a_row": measured and round(measured.thoughts, 1),
        "rows_per_engine_second": _range(measured.pace if measured else None),
        "measured_from": measured.source if measured else None,
        "rows_measured": measured.rows if measured else 0,
        "workers": made.workers,
        "workers_from": made.workers_source,
        "engine_seconds": _range(made.engine_seconds),
        "cost": _range(made.cost),
        "budget": made.spec.limits.budget,
        "seconds": _range(made.seconds),
        "finished_at": {
            bound: moment.isoformat(timespec="seconds") for bound, moment in _ends(made).items()
        }
        or None,
        "notes": made.notes,
    }


def _range(value: Range | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    return {
        bound: None if figure == math.inf else figure for bound, figure in asdict(value).items()
    }
