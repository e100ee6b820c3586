"""The report of `nightshift-worker --profile`: its file, to which each child appends a line every
few seconds, and the summary of that file.

Figures in a line are sums since the child's start, so the last line of each child says it all. A
killed child leaves those of its last line.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import structlog
from rich.console import Console
from rich.table import Table

from nightshift.common.telemetry.metrics import Stage
from nightshift.common.telemetry.steps import append
from nightshift.common.text import counted
from nightshift.worker.telemetry.utilization import Occupancy, StageTotals, Utilization

log = structlog.get_logger(__name__)


class ProfileFile:
    """Appends the figures of one child to a file that its siblings append to as well."""

    every_seconds = 5.0
    """Pause between two lines."""

    def __init__(
        self, path: Path, utilization: Utilization, worker_id: str, supervisor: str
    ) -> None:
        self._path = path
        self._utilization = utilization
        self._names = {"worker_id": worker_id, "supervisor": supervisor}
        # Imports and the engine's load are over, and no part of the work.
        self._cpu_before = time.process_time()

    def update(self) -> None:
        """Appends a line."""
        line = {
            **self._names,
            "at": round(time.time(), 3),
            "cpu_seconds": time.process_time() - self._cpu_before,
            **self._utilization.figures(),
        }
        try:
            append(self._path, json.dumps(line) + "\n")
        except OSError as error:  # a full disk is no reason to stop working
            log.warning("profile_failed", error=str(error))


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums of several children; `cpu_seconds` are those of their whole processes, from
    the moment at which their engines were loaded.
    """

    children: int
    cpu_seconds: float
    stages: dict[Stage, StageTotals]
    engine: Occupancy

    @classmethod
    def read(cls, path: Path, supervisor: str | None = None) -> Self:
        """From the last line of each child; of one supervisor's children if it is named."""
        lines = read(path, supervisor).values()
        return cls(
            children=len(lines),
            cpu_seconds=sum(line["cpu_seconds"] for line in lines),
            stages={
                stage: _sum(StageTotals, (line["stages"][stage] for line in lines))
                for stage in Stage
            },
            engine=_sum(Occupancy, (line["engine"] for line in lines)),
        )


def read(path: Path, supervisor: str | None = None) -> dict[str, dict[str, Any]]:
    """The last line of each child by its worker id; of one supervisor's children if it is named."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {
        line["worker_id"]: line
        for line in lines
        if "step" not in line and supervisor in (None, line["supervisor"])
    }


def show(figures: Figures, console: Console) -> None:
    """The summary for a person."""
    table = Table(
        title=f"Where the time went: {counted(figures.children, 'child', 'children')}",
        title_justify="left",
    )
    for heading in ("stage", "batches", "calls", "seconds", "longest s", "CPU s", "CPU ms/batch"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    known = 0.0
    for stage, spent in figures.stages.items():
        if not spent.calls:
            continue
        known += spent.cpu_seconds
        table.add_row(
            stage,
            f"{spent.count:,}",
            f"{spent.calls:,}",
            f"{spent.seconds:,.2f}",
            f"{spent.longest_seconds:.3f}",
            f"{spent.cpu_seconds:,.2f}",
            _ms_each(spent.cpu_seconds, spent.count),
        )
    batches, cpu = figures.stages[Stage.COMMIT].count, figures.cpu_seconds
    for name, count, seconds in (("other", "", cpu - known), ("all", f"{batches:,}", cpu)):
        each = _ms_each(seconds, batches)
        table.add_row(name, count, "", "", "", f"{seconds:,.2f}", each)
    console.print(table)
    console.print(_occupancy(figures.engine), highlight=False)


def _occupancy(engine: Occupancy) -> str:
    if not engine.seconds:
        return "The engine never had work."
    share = {
        name: getattr(engine, f"{name}_seconds") / engine.seconds
        for name in ("fewer", "empty", "dry")
    }
    # Of fewer rows in all that share is the whole time, and says nothing of the engine.
    fewer = f"{share['fewer']:.1%} with fewer than the {engine.concurrency:,} that it takes, "
    return (
        f"Engine: {counted(engine.rows, 'row')} in {engine.seconds:,.1f} s at work, "
        f"{engine.row_seconds / engine.seconds:.1f} at a time. Of that time "
        f"{fewer if engine.rows >= engine.concurrency else ''}"
        f"{share['empty']:.1%} with none, {share['dry']:.1%} while none was admitted."
    )


def _ms_each(seconds: float, count: int) -> str:
    return f"{seconds / count * 1000:.2f}" if count else ""


def _sum(kind: type[Any], parts: Iterable[dict[str, Any]]) -> Any:
    """The sums of each field; the largest value for a field that is a maximum or a constant."""
    rows = [asdict(kind()), *parts]
    return kind(
        **{
            each.name: (max if each.name in ("longest_seconds", "concurrency") else sum)(
                row[each.name] for row in rows
            )
            for each in fields(kind)
        }
    )
