"""`make bench-embed`: embed and classify, short and mixed rows, the fleet beside the library's better loop."""

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.embed import library
from benchmarks.embed.rig import Rig, Turn, servers, turn
from benchmarks.report import Line, Median, keep, show, spread

console = Console(highlight=False)

WANTED = 1.0

ROWS = {"short": 20_000, "mixed": 2_000}

TASKS = ("embed", "classify")


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    share: Annotated[float, typer.Option(help="Share of the rows, kept nowhere below 1.")] = 1.0,
    only: Annotated[str, typer.Option(help="Tasks, with commas between.")] = ",".join(TASKS),
) -> None:
    """Measure the transformers engine on CPU: rows/s of the fleet over those of the library."""
    chosen = [task for task in TASKS if task in only.split(",")]
    turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-embed-") as name:
        home = Path(name)
        models = library.models(home / "models", library.CPU)
        data = {
            kind: library.rows(home / f"{kind}.parquet", int(share * count), kind)
            for kind, count in ROWS.items()
        }
        with servers(home) as urls:
            for number in range(rounds):
                for task in chosen:
                    rig = Rig(task, models[task], home, library.CPU, urls)
                    for kind, found in turn(rig, data, number).items():
                        console.print(f"{task}, {kind} rows: {found}")
                        turns[task, kind].append(found)
    lines = [
        line("embed", f"{each[0].count:,} {kind} rows", task, each, WANTED)
        for (task, kind), each in turns.items()
    ]
    (keep if rounds >= 3 and share == 1 and chosen == list(TASKS) else show)("embed", lines)


def line(
    section: str, rows: str, task: str, turns: list[Turn], wanted: float, said: str = ""
) -> Line:
    """The line of one task over one kind of rows."""
    ratio = Median.of([each.ratio for each in turns])
    rates = [each.count / each.fleet for each in turns]
    library_rates = [each.count / each.loops[each.better] for each in turns]
    better = ", ".join(sorted({each.better for each in turns}))
    unlike = max(each.unlike for each in turns)
    cpu = Median.of([min(each.loops_cpu.values()) / each.fleet_cpu for each in turns])
    return Line(
        section=section,
        contender=f"{task}, {rows}; the library's better loop: {better}; {unlike} answers differ; by CPU seconds {cpu}{said}",
        rate=f"{Median.of(rates).value:,.0f} rows/s, library {Median.of(library_rates).value:,.0f}",
        ratio=str(ratio),
        rounds=ratio.rounds,
        spread=spread(rates),
        wanted=f"at least {wanted}",
        verdict=ratio.verdict(wanted),
    )


if __name__ == "__main__":
    typer.run(main)
