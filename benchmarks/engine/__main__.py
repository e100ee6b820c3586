"""`make bench-engine`: rounds of raw vLLM, the naive loop and the fleet, one after the other."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.engine import model, rows
from benchmarks.engine.contender import Contender, Plan, Result, Workload
from benchmarks.engine.contenders import Naive, Raw
from benchmarks.engine.fleet import Fleet
from benchmarks.engine.table import Round, lines
from benchmarks.report import keep, show
from nightshift.common.ledger import Ledger, schema
from nightshift.producer.embedded.home import home_lock
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.embedded.redis_server import EmbeddedRedis

CONTENDERS = "abcd"
WARM_ROWS = 256
console = Console(highlight=False)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at batch 64.")] = 7,
    others: Annotated[int, typer.Option(min=0, help="Of these, rounds at 16 and 256 too.")] = 3,
    size: Annotated[
        int, typer.Option(min=256, help="Rows at batch 64; four times so many at 256.")
    ] = 1024,
    quick: Annotated[bool, typer.Option(help="One round of few rows, kept nowhere.")] = False,
    only: Annotated[str, typer.Option(help="Contenders, by their letters.")] = CONTENDERS,
    folder: Annotated[
        Path | None, typer.Option(help="Keeps everything here; else it is temporary.")
    ] = None,
) -> None:
    """Measure how full the fleet keeps its engine, beside raw vLLM and a naive loop."""
    size = 64 if quick else size
    rounds, others = (1, 1) if quick else (rounds, min(others, rounds))
    home = folder or Path(tempfile.mkdtemp(prefix="bench-engine-"))
    try:
        with embedded(home / "home") as (database_url, broker_url):
            contenders: list[Contender] = [
                Raw("a", "generate"),
                Raw("b", "async"),
                Naive("c", broker_url),
                Fleet("d", database_url, broker_url),
            ]
            contenders = [each for each in contenders if each.name in only]
            tell = show if quick or len(contenders) < len(CONTENDERS) else keep
            measured: list[Round] = []
            for number in range(rounds):
                measured.append(_round(number, home, contenders, size, wide=number < others))
                tell("engine", lines(measured))  # a run that breaks off has its rounds
    finally:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _round(number: int, home: Path, contenders: list[Contender], size: int, *, wide: bool) -> Round:
    """Every contender once; the order rotates, so that no contender always follows the same one."""
    made = model.make(home / "model")
    short = rows.write(home, size, seed=2 * number)
    long = rows.write(home, 4 * size, seed=2 * number + 1)
    warm = Workload(str(rows.write(home, WARM_ROWS, seed=10_000)), WARM_ROWS, 64)
    turned = contenders[number % len(contenders) :] + contenders[: number % len(contenders)]
    found: Round = {}
    for contender in turned:
        batches = {"c": (64,), "d": (64, 16)}.get(contender.name, (64,))
        work = [Workload(str(short), size, batch) for batch in batches[: 2 if wide else 1]]
        if wide and contender.name != "c":
            work.append(Workload(str(long), 4 * size, 256))
        place = home / f"{number}-{contender.name}"
        place.mkdir(parents=True)
        plan = Plan(str(made), str(place), warm, tuple(work))
        for workload, result in zip(work, contender.run(plan), strict=True):
            found[contender.name, workload.rows, workload.batch] = result
            console.print(
                f"round {number + 1}, {contender.name}, batch {workload.batch}: "
                f"{workload.rows / result.seconds:.1f} rows/s, {result.tokens}"
            )
    for path in (short, long):
        _check(path, found)
    return found


def _check(path: Path, found: Round) -> None:
    """Every contender must have the same tokens and the same engine."""
    size = len(rows.read(path))
    same = {f"{key}": each for key, each in found.items() if key[1] == size}
    if same:
        rows.check(path, {name: each.tokens for name, each in same.items()})
    engines = {name: each.engine for name, each in same.items()}
    first: Result | None = next(iter(same.values()), None)
    for name, engine in engines.items():
        assert first is not None
        assert engine == first.engine, f"{name} had another engine: {engine}, {first.engine}"
    if first is not None:
        console.print(f"identical for all: {first.tokens}; {first.engine}")


@contextmanager
def embedded(home: Path) -> Iterator[tuple[str, str]]:
    """Postgres with the ledger's tables, and Redis."""
    home.mkdir(parents=True, exist_ok=True)
    postgres, redis = EmbeddedPostgres(), EmbeddedRedis()
    with home_lock(home):
        try:
            database_url, broker_url = postgres.start(home), redis.start(home)
            ledger = Ledger(database_url)
            schema.migrate(ledger)
            ledger.close()
            yield database_url, broker_url
        finally:
            redis.stop()
            postgres.stop()


if __name__ == "__main__":
    typer.run(main)
