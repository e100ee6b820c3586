"""The result of a benchmark: lines of one table, on the screen, in a file, and in
docs/performance.md.

Each benchmark shows its lines and keeps them in `benchmarks/measured/NAME.json`, with the day and the
machine; `python -m benchmarks.report` lays all that are kept between the markers of
docs/performance.md. The files are part of the repository, so that one benchmark can be measured anew
and the page made again.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "measured"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

RESAMPLES = 10_000
"""Draws of the bootstrap; with so many its interval moves by less than the digits that are printed."""

INTERVAL_PERCENT = 95

FIRST = ("peers", "engine", "arranged")
"""Benchmarks that stand first in the table: those beside other programs."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, as it is printed; `wanted` and `verdict` are empty for a comparison.

    `ratio` is the median over rounds of what was measured side by side in the same round, with its
    bootstrap interval; `spread` is the least and greatest of the absolute figures.
    """

    section: str
    contender: str
    rate: str
    ratio: str
    rounds: int
    spread: str
    wanted: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Median:
    """A median with its percentile bootstrap interval (Efron 1979; 95 %, 10,000 draws)."""

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Self:
        """From one value a round."""
        found = np.asarray(values, dtype=float)
        draws = np.random.default_rng(seed).choice(found, (RESAMPLES, len(found)))
        tail = (100 - INTERVAL_PERCENT) / 2
        low, high = np.percentile(np.median(draws, axis=1), [tail, 100 - tail])
        return cls(float(np.median(found)), float(low), float(high), len(found))

    def verdict(self, wanted: float, *, at_least: bool = True) -> str:
        """`met` or `missed by N %`; `unresolved` where the interval spans what is wanted."""
        if self.low < wanted < self.high:
            return "unresolved"
        if (self.value >= wanted) is at_least or self.value == wanted:
            return "met"
        return f"missed by {abs(self.value / wanted - 1):.1%}"

    def __str__(self) -> str:
        if self.rounds == 1:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def spread(values: Sequence[float]) -> str:
    """Least to greatest of the absolute figures."""
    return f"{min(values):.3g} to {max(values):.3g}"


def keep(name: str, lines: Sequence[Line], **figures: object) -> None:
    """Shows the lines of one benchmark and keeps them for the page; with them `figures`, from which a
    picture is drawn.
    """
    show(name, lines)
    OUT.mkdir(exist_ok=True)
    kept = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "lines": [asdict(line) for line in lines],
        **figures,
    }
    (OUT / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def show(title: str, lines: Sequence[Line]) -> None:
    """The lines as a table on the screen."""
    table = Table(title=f"{title}: {machine()}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*_cells(line))
    Console(width=max(170, Console().width)).print(table)


HEADINGS = ("what", "contender", "rate", "ratio", "rounds", "spread", "wanted", "verdict")


def machine() -> str:
    """The machine in a few words: cores, memory, processor, system."""
    memory = psutil.virtual_memory().total / 2**30
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    }
    return (
        f"{os.cpu_count()} cores ({', '.join(sorted(names)) or platform.machine()}), "
        f"{memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def written(page: str) -> str:
    """The page with everything that is kept between its markers: one table a machine."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for file in sorted(OUT.glob("*.json"), key=_order):
        kept = json.loads(file.read_text(encoding="utf-8"))
        tables.setdefault(kept["machine"], []).extend(
            (*_cells(Line(**line)), kept["measured"]) for line in kept["lines"]
        )
    head = (*HEADINGS, "measured")
    before, _, rest = page.partition(BEGIN)
    parts = [before + BEGIN]
    for place, rows in tables.items():
        lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]
        parts += [f"Machine: {place}.", "\n".join(lines)]
    return "\n\n".join([*parts, END]) + rest.partition(END)[2]


def _order(file: Path) -> tuple[int, str]:
    return FIRST.index(file.stem) if file.stem in FIRST else len(FIRST), file.stem


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.section,
        line.contender,
        line.rate,
        line.ratio,
        str(line.rounds),
        line.spread,
        line.wanted,
        line.verdict,
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
