"""Where the time of a run went, step by step, from the lines that its processes wrote."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nightshift.common.telemetry.steps import Reached, Step


def read(path: Path, supervisor: str | None = None, since: float = 0.0) -> list[Reached]:
    """The steps in a profile's file that were reached `since` a time of day, by one supervisor and
    its children, or by the command that started them, if a supervisor is named. Other lines of the
    file are left out, also those that are cut off.
    """
    steps = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        reached = _reached(text)
        if reached is None or reached.at < since:
            continue
        if supervisor in (None, reached.supervisor) or reached.supervisor is None:
            steps.append(reached)
    return steps


def _reached(text: str) -> Reached | None:
    """The step that a line tells of; None for a line of anything else."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    step, at = line.get("step"), line.get("at")
    if not isinstance(step, str) or step not in Step.__members__ or not isinstance(at, int | float):
        return None
    texts = {
        name: line[name]
        for name in ("name", "supervisor", "worker_id")
        if isinstance(line.get(name), str)
    }
    return Reached(Step[step], float(at), **texts)


def way(steps: Iterable[Reached]) -> list[Reached]:
    """The steps on the way to the first row and from there to the end, in the order of time.

    Of several children it shows the one with the first row, or the first one. A step that was reached
    several times (a pilot, processes of one engine) counts when it was reached the last time before
    the first row, or the last time after.
    """
    ordered = sorted(steps, key=lambda each: each.at)
    rows = [each for each in ordered if each.step is Step.FIRST_ROW]
    children = [*rows, *(each for each in ordered if each.worker_id is not None)]
    child = children[0].worker_id if children else None
    first = rows[0].at if rows else float("inf")
    last = {
        (each.at > first, each.step, each.name.partition("-")[0]): each
        for each in ordered
        if each.worker_id in (None, child)
        and (each.at <= first or each.step in (Step.OVER, Step.CLOSED, Step.LEFT))
    }
    return sorted(last.values(), key=lambda each: each.at)


def show(steps: Sequence[Reached], console: Console) -> None:
    """The way as a table: when each step was reached, how long the step took, and what it was."""
    if not steps:
        return
    table = Table(title="Step by step", title_justify="left")
    table.add_column("reached")
    for heading in ("at s", "took s"):
        table.add_column(heading, justify="right")
    table.add_column("mostly")
    began = before = steps[0].at
    for each in steps:
        reached, mostly = each.step.value
        if each.name:
            reached = f"{each.name} begun"
        took = f"{each.at - before:.1f}" if each is not steps[0] else ""
        table.add_row(reached, f"{each.at - began:.1f}", took, mostly)
        before = each.at
    console.print(table)
