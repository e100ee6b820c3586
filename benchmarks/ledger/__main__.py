"""`make bench-ledger`: a million batches stored, then listed, claimed, renewed, reaped, admitted
and finished.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.ledger import million, plans
from benchmarks.ledger.latency import Actors, Operation, line, measure
from benchmarks.ledger.million import OWNERS, Stored
from benchmarks.report import Line, keep, show
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs import job_end
from nightshift.producer.embedded.home import home_lock
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.reaper.finish import finish

WANTED_SECONDS = 30.0
WANTED_MEMORY = 500.0

FRESH_CALLS = 100
"""Calls before the first vacuum; twice as slow, and only printed beside the others."""

console = Console(highlight=False)


def main(
    batches: Annotated[int, typer.Option(min=10_000, help="Batches of the job.")] = 1_000_000,
    calls: Annotated[int, typer.Option(min=10, help="Calls of each kind.")] = 500,
    only: Annotated[str, typer.Option(help="Operations whose name holds this.")] = "",
) -> None:
    """Measure the ledger's transactions with very many batches in its tables."""
    folder = Path(tempfile.mkdtemp(prefix="bench-ledger-"))
    try:
        with postgres(folder / "home") as url:
            lines = _measured(url, folder, batches, calls, only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if batches == 1_000_000 and not only:
        keep("ledger", lines)
    else:
        show("ledger", lines)


def _measured(url: str, folder: Path, batches: int, calls: int, only: str) -> list[Line]:
    section = "ledger"
    stored = million.store(url, folder, batches)
    console.print(f"stored: {stored}")
    lines = _stored(section, stored)
    million.bring_midway(url, batches)
    ledger = Ledger(url, connections=OWNERS)
    actors = Actors.of(ledger)
    operations = [each for each in actors.operations() if only in each.name]

    def tell(name: str, taken: list[float], wanted: float | None) -> None:
        lines.append(line(section, name, taken, wanted))
        console.print(f"{name}: {lines[-1].rate}")

    for operation in operations:
        taken = measure(ledger, operation, min(calls, FRESH_CALLS))
        tell(f"{operation.name}, never vacuumed", taken, None)
    million.vacuum(url)
    for operation in operations:
        tell(operation.name, measure(ledger, operation, calls), operation.wanted)
    lines += [_planned(ledger, section, each) for each in operations if each.wanted is not None]
    lines += _finished(ledger, url, section, actors.job_id, folder / "out")
    ledger.close()
    return lines


def _stored(section: str, stored: Stored) -> list[Line]:
    def judged(name: str, unit: str, value: float, wanted: float) -> Line:
        verdict = "met" if value < wanted else f"missed by {value / wanted - 1:.0%}"
        return Line(
            section, name, f"{value:.1f} {unit}", "", 1, "", f"< {wanted:g} {unit}", verdict
        )

    return [
        judged("planned and stored", "s", stored.seconds, WANTED_SECONDS),
        judged("planned and stored, peak memory", "MiB", stored.peak, WANTED_MEMORY),
    ]


def _planned(ledger: Ledger, section: str, operation: Operation) -> Line:
    if operation.before is not None:
        with ledger.transaction() as connection:
            operation.before(connection)
    nodes = plans.explain(ledger, operation.act)
    scanned = plans.scanned(nodes)
    verdict = f"missed: reads all of {', '.join(scanned)}" if scanned else "met"
    name = f"plan of {operation.name}"
    return Line(section, name, plans.reads(nodes), "", 1, "", "no scan of a table", verdict)


def _finished(ledger: Ledger, url: str, section: str, job_id: int, output: Path) -> list[Line]:
    million.bring_over(url, output)
    began = time.perf_counter()
    with ledger.transaction() as connection:
        hold = job_end.take_finishable(connection, "r")
        assert hold is not None
        assert hold.subject == str(job_id)
    found = time.perf_counter() - began
    finish(ledger, job_id)
    seconds = time.perf_counter() - began
    with ledger.transaction() as connection:
        assert job_end.take_finishable(connection, "r") is None
    text = f"{seconds:.1f} s, {found * 1000:.1f} ms of it to find out"
    return [Line(section, "finish with every part in its place", text, "", 1, "")]


@contextmanager
def postgres(home: Path) -> Iterator[str]:
    """A server with the ledger's tables."""
    home.mkdir(parents=True)
    postgres = EmbeddedPostgres()
    with home_lock(home):
        try:
            url = postgres.start(home)
            ledger = Ledger(url)
            schema.migrate(ledger)
            ledger.close()
            yield url
        finally:
            postgres.stop()


if __name__ == "__main__":
    typer.run(main)
