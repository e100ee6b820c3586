"""Rows of a job as rich tables: those that failed, those of a sample, and problems that verify finds."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nightshift.producer.views.cells import list_table
from nightshift.producer.views.rates import Values
from nightshift.producer.views.values import error_text, value_text

CELL_CHARACTERS = 200


def errors(rows: Sequence[Values], kinds: Mapping[str, int]) -> RenderableType:
    """Failed rows with kind and message; below, how many of each kind the job has in all."""
    if not kinds:
        return Text("no row has failed", "green")
    counts = Text("in all: ", "bright_black")
    counts.append(", ".join(f"{count:,} {kind}" for kind, count in kinds.items()), "default")
    return Group(_error_table(rows), counts) if rows else counts


def check(name: str, summary: str, problems: Sequence[str]) -> RenderableType:
    """One check of verify: an ok line, or a line for each of its problems."""
    if not problems:
        return Text.assemble(("ok   ", "green"), f"{name:<13}", (summary, "bright_black"))
    return Group(
        *(Text.assemble(("bad  ", "bold red"), f"{name:<13}", problem) for problem in problems)
    )


def _error_table(rows: Sequence[Values]) -> Table:
    table = list_table("row", "id", "kind", "message")
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
    table = list_table("row")
    table.columns[0].justify = "right"
    table.columns[0].no_wrap = True
    table.show_lines = True
    for names, style in ((inputs, None), (outputs, "cyan")):
        for name in names:
            table.add_column(escape(name), overflow="fold", ratio=1, style=style)
    for row in rows:
        table.add_row(f"{row['row_index']:,}", *(_cell(row, name) for name in [*inputs, *outputs]))
    return table


def _cell(row: Values, name: str) -> Text:
    if name == "error":
        return Text(error_text(row["error"]), "red")
    return Text(value_text(row.get(name), CELL_CHARACTERS))
