"""`make bench-claims`: claims a second on one queue by 1, 2, 4, … 64 claimants, each a process with a
connection of its own, and what the best of fewer claimants reach.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psycopg
import typer
from rich.console import Console

from benchmarks.fleet import servers, tree_seconds
from benchmarks.ledger import million
from benchmarks.ledger.__main__ import postgres
from benchmarks.report import Line, Median, keep, show, spread
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims
from nightshift.common.ledger.batches.records import Claimant

SECTION = "claims on one queue"
SERIES = (1, 2, 4, 8, 16, 32, 64)
WANTED_SHARE = 0.8
LEASE_SECONDS = 3600.0
LEFT = 1_000
"""Batches that stay pending, so that shares are asked for as in the middle of a job."""

FORK = get_context("fork")
"""Without threads in this process. 64 interpreters that start anew take half a minute."""

console = Console(highlight=False)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the whole series.")] = 3,
    seconds: Annotated[float, typer.Option(help="How long each point claims.")] = 5,
    batches: Annotated[int, typer.Option(min=10_000, help="Batches of the queue.")] = 150_000,
) -> None:
    """Measure claims with few and with many claimants."""
    folder = Path(tempfile.mkdtemp(prefix="bench-claims-"))
    try:
        with postgres(folder / "home") as url:
            million.store(url, folder, batches)
            lines = _measured(url, batches, rounds, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (keep if (rounds, seconds) == (3, 5) else show)("claims", lines)


def _measured(url: str, batches: int, rounds: int, seconds: float) -> list[Line]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(million.WORKERS)
        [queue] = connection.execute("SELECT pool, engine_key FROM jobs")
        connection.execute(million.ADMITTED, {"first": 0, "stop": batches - LEFT})
    found: dict[int, list[Point]] = {number: [] for number in SERIES}
    for turn in range(rounds):
        # Up and down in turns: what drifts with time favours neither end.
        for number in SERIES[:: -1 if turn % 2 else 1]:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM (ANALYZE) batches, attempts, job_counters")
            point = _point(url, queue, number, seconds)
            _check_queue(url)
            found[number].append(point)
            console.print(f"round {turn + 1}, {number} claimants: {point}")
    return [_line(number, found) for number in SERIES]


def _check_queue(url: str) -> None:
    with psycopg.connect(url) as connection:
        left = connection.execute("SELECT FROM batches WHERE state = 'queued' LIMIT 1").fetchone()
    if left is None:
        raise SystemExit("the claimants emptied the queue: give more --batches or fewer --seconds")


class Point:
    """What so many claimants did at once: claims a second, milliseconds of each transaction, and
    CPU milliseconds of Postgres for each claim.
    """

    def __init__(self, claimed: int, seconds: float, taken: Sequence[float], cpu: float) -> None:
        self.rate = claimed / seconds
        self.half, self.most = np.percentile(taken, [50, 99])
        self.cpu = 1000 * cpu / max(1, claimed)

    def __str__(self) -> str:
        times = f"p50 {self.half:.1f} ms, p99 {self.most:.1f} ms"
        return f"{self.rate:.0f} claims/s, {times}, {self.cpu:.2f} ms CPU of Postgres each"


def _point(url: str, queue: tuple[str, str], number: int, seconds: float) -> Point:
    barrier, results = FORK.Barrier(number + 1), FORK.SimpleQueue()
    claimants = [
        FORK.Process(target=_claim, args=(url, queue, place, barrier, seconds, results))
        for place in range(number)
    ]
    for each in claimants:
        each.start()
    (server,) = servers().values()
    barrier.wait()
    cpu, began = sum(tree_seconds(server)), time.perf_counter()
    found = [results.get() for _ in claimants]
    passed, cpu = time.perf_counter() - began, sum(tree_seconds(server)) - cpu
    for each in claimants:
        each.join()
    taken = [milliseconds for _, some in found for milliseconds in some]
    return Point(sum(claimed for claimed, _ in found), passed, taken, cpu)


def _claim(
    url: str, queue: tuple[str, str], number: int, barrier: Barrier, seconds: float, results: Any
) -> None:
    """Claims one batch after the other, each as a child does that holds nothing."""
    ledger = Ledger(url, connections=1)
    who = Claimant(f"w-{number}", *queue, "function", "1")
    with ledger.transaction() as connection:
        claims.fair_share(connection, who, LEASE_SECONDS)
    barrier.wait()
    claimed, taken = 0, []
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        with ledger.transaction() as connection:
            claims.fair_share(connection, who, LEASE_SECONDS)
            claimed += len(
                claims.claim(
                    connection, who, room_rows=1, max_batches=2, idle=False, woken="message",
                    lease_seconds=LEASE_SECONDS,
                )
            )  # fmt: skip
        taken.append(1000 * (time.perf_counter() - began))
    results.put((claimed, taken))
    ledger.close()


def _line(number: int, found: dict[int, list[Point]]) -> Line:
    points = found[number]
    rates = [point.rate for point in points]
    fewer = [found[each] for each in SERIES if each < number]
    half, most = (np.median([getattr(each, name) for each in points]) for name in ("half", "most"))
    text = f"{Median.of(rates)} claims/s, p50 {half:.1f} ms, p99 {most:.1f} ms"
    ratio = verdict = ""
    if fewer:
        best = [max(some[turn].rate for some in fewer) for turn in range(len(points))]
        share = Median.of([rate / most for rate, most in zip(rates, best, strict=True)])
        ratio = f"{share} of the best with fewer"
        verdict = share.verdict(WANTED_SHARE) if number == SERIES[-1] else ""
    wanted = f"{WANTED_SHARE} of the best" if verdict else ""
    return Line(
        SECTION, f"{number} claimants", text, ratio, len(points), spread(rates), wanted, verdict
    )


if __name__ == "__main__":
    typer.run(main)
