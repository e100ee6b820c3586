"""What a tuning tried and what it keeps, as a table for people and as JSON for machines."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from nightshift.common.text import counted
from nightshift.producer.submit.auto_args import as_text, without_secrets
from nightshift.producer.tune.trials import Candidate
from nightshift.producer.tune.tune import Tuned, faster


def as_json(tuned: Tuned) -> dict[str, Any]:
    """What was tried and what is kept, for machines."""
    return {
        "model": tuned.model,
        "task": tuned.task,
        "hardware": tuned.hardware,
        "kept": None if tuned.for_auto is None else without_secrets(tuned.for_auto),
        "left_out": without_secrets(tuned.left_out),
        "gain": tuned.gain,
        "offered": None if tuned.offered is None else _offer_as_json(tuned),
        "tried": [
            {
                "args": without_secrets(each.args),
                "rows_per_second": each.rates,
                "problem": each.problem,
                "may_change_answers": without_secrets(each.changed),
                "agreement": None if each.agreement is None else each.agreement.as_json(),
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
    table.add_column("answers as in the spec", overflow="fold")
    table.add_column("", overflow="fold")
    for each in tuned.candidates:
        differs = {name: value for name, value in each.args.items() if own.args.get(name) != value}
        rates = [f"{each.rates[rows]:,.1f}" if rows in each.rates else "" for rows in rungs]
        agreement = "" if each.agreement is None else str(each.agreement)
        name = "as in the spec" if each is own else as_text(differs)
        table.add_row(name, *rates, agreement, _remark(tuned, each))
    console.print(table, markup=False)
    console.print(_kept(tuned), soft_wrap=True, markup=False)
    if tuned.offered is not None:
        console.print(_offer(tuned), soft_wrap=True, markup=False)


def _remark(tuned: Tuned, each: Candidate) -> str:
    if each.problem is not None:
        return each.problem
    remarks = {"kept": each is tuned.best, "may change answers": bool(each.changed)}
    return ", ".join(remark for remark, holds in remarks.items() if holds)


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
    if best.changed:
        said += f"; {as_text(best.changed)} may change answers, {best.agreement}"
    but = (
        f", but for {as_text(tuned.left_out)}: --min-agreement allows it" if tuned.left_out else ""
    )
    where = f"for {tuned.model}, {tuned.task}, on {tuned.hardware}"
    return f"{said}, {where}. `engine.args: auto` uses them{but}."


def _offer(tuned: Tuned) -> str:
    offer = _offer_as_json(tuned)
    assert tuned.offered is not None
    return (
        f"With {as_text(tuned.offered.changed)} it would be {offer['gain']:.2f} times as fast as what is kept, "
        f"and answers may change ({tuned.offered.agreement}): the same command with --min-agreement "
        f"{offer['min_agreement']:g} finds these trials again and keeps it."
    )


def _offer_as_json(tuned: Tuned) -> dict[str, Any]:
    offered, best = tuned.offered, tuned.best
    assert offered is not None
    assert best is not None
    assert offered.agreement is not None
    return {
        "args": without_secrets(offered.args),
        "gain": faster(offered, best),
        "min_agreement": enough(offered.agreement.equal),
    }


def enough(equal: float) -> float:
    """A share for --min-agreement that a measured one passes, also where it is measured again: a hundredth
    below, in hundredths.
    """
    return max(0, math.floor(round(100 * equal, 6)) - 1) / 100
