"""The summary of a worker's profile: `python -m benchmarks.spans FILE`, or `spans.show` in a benchmark."""

from pathlib import Path

import typer
from rich.console import Console

from nightshift.worker.telemetry import report
from nightshift.worker.telemetry.report import Figures


def show(path: Path) -> Figures:
    """Prints the summary of every child in a file of `nightshift-worker --profile`."""
    figures = Figures.read(path)
    report.show(figures, Console(width=max(100, Console().width)))
    return figures


def main(file: Path) -> None:
    """The summary of a profile's FILE."""
    show(file)


if __name__ == "__main__":
    typer.run(main)
