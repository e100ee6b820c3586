"""What a tuning tried and what it keeps, as a table for people and as JSON for machines."""

from typing import Any

from rich.console import Console
from rich.table import Table

from nightshift.common.text import counted
from nightshift.producer.submit.auto_args import as_text, without_secrets
from nightshift.producer.tune.tune import Tuned


def as_json(tuned: Tuned) -> dict[str, Any]:
    """What was tried and what is kept, for machines."""
    return {
        "model": tuned.model,
        "task": tuned.task,
        "hardware": tuned.hardware,
        "kept": None if tuned.for_auto is None else without_secrets(tuned.for_auto),
        "left_out": without_secrets(tuned.left_out),
        "gain": tuned.gain,
        "tried": [
            {
                "args": without_secrets(each.args),
                "rows_per_second": each.rates,
                "problem": each.problem,
            }
            for each in tuned.candidates
        ],
    }


def show(tuned: Tuned, console: Console) -> None:
    """The table of what was tried, and what is kept."""
    own, *_ = tuned.candidates
    rungs = sorted({rows for each in tuned.candidates for rows in each.rates})
    table = Table(title="Rows/s of an engine", title_justify="left")
    table.add_column("arguments", overflow="fold")
    for rows in rungs:
        table.add_column(f"{counted(rows, 'row')}", justify="right")
    table.add_column("", overflow="fold")
    for each in tuned.candidates:
        differs = {name: value for name, value in each.args.items() if own.args.get(name) != value}
        rates = [f"{each.rates[rows]:,.1f}" if rows in each.rates else "" for rows in rungs]
        name = "as in the spec" if each is own else as_text(differs)
        table.add_row(name, *rates, each.problem or ("kept" if each is tuned.best else ""))
    console.print(table, markup=False)
    console.print(_kept(tuned), soft_wrap=True, markup=False)


def _kept(tuned: Tuned) -> str:
    best = tuned.best
    if best is None:
        return "Nothing is kept."
    if best is tuned.candidates[0]:
        said = "None was faster than the arguments of the spec, which are kept"
    elif tuned.gain is None:
        said = f"Kept: {as_text(best.args)}; the arguments of the spec did not run"
    else:
        said = f"Kept: {as_text(best.args)}, {tuned.gain:.2f} times the rows/s of the spec's own"
    but = (
        f", without {as_text(tuned.left_out)} of the spec, which may change answers: a spec that wants this names "
        "all of its arguments"
        if tuned.left_out
        else ""
    )
    where = f"for {tuned.model}, {tuned.task}, on {tuned.hardware}"
    return f"{said}, {where}. `engine.args: auto` uses them{but}."
