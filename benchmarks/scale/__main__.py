"""`make bench-scale`: 1,000 simulated children of 125 machines on one real Postgres, with two real
reapers, a real Redis, three pools and a hundred jobs. What it prints is what a fleet of that size
asks of Postgres.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psycopg
import typer

from benchmarks import report
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from benchmarks.scale import bursts
from benchmarks.scale.bouncer import POOL_SIZE, bouncer
from benchmarks.scale.children import SLOTS, Order, simulate
from benchmarks.scale.server_times import ServerTimes
from nightshift.common.ledger.jobs import jobs

PROCESSES = 2
CONNECTIONS = 12
"""Of each process; a real fleet has two or three for each child and one for each machine."""

SECTION = "1,000 children"


def main(
    machines: Annotated[int, typer.Option(help="Machines of 8 children each.")] = 125,
    seconds: Annotated[float, typer.Option(help="How long the fleet works.")] = 120,
    burst: Annotated[int, typer.Option(help="Batches to admit at once.")] = 60_000,
    leases: Annotated[int, typer.Option(help="Expired leases to take back.")] = 256_000,
    only: Annotated[str, typer.Option(help="fleet or bursts; both when empty.")] = "",
) -> None:
    """Measures claims, commits, heartbeats and looks, the time of a pause, and bursts of a reaper."""
    lines: list[Line] = []
    if only != "bursts":
        with _started() as (here, connection):
            rows = max(100, int(machines * SLOTS * seconds / 30 / bursts.JOBS * 1.5))
            bursts.open_jobs(here, bursts.JOBS, rows, "job")
            lines += _steady(here, connection, machines, seconds)
    if only != "fleet":
        with _started() as (here, connection):
            lines += bursts.measure(here, connection, burst, leases)
    if (machines, burst, leases, only) == (125, 60_000, 256_000, ""):
        report.keep("scale", lines)
    else:
        report.show("scale", lines)


@contextmanager
def _started() -> Iterator[tuple[Fleet, Any]]:
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-scale-") as parent,
        fleet(Path(parent)) as here,
        psycopg.connect(here.ledger.url, autocommit=True) as connection,
    ):
        yield here, connection


def _steady(here: Fleet, connection: Any, machines: int, seconds: float) -> list[Line]:
    engines = connection.execute("SELECT DISTINCT pool, engine_key FROM jobs").fetchall()
    with (
        bouncer(here.ledger.url, here.folder) as own,
        bursts.reapers(here),
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool,
    ):
        url = own or here.ledger.url
        running = [
            pool.submit(
                simulate,
                Order(url, range(n, machines, PROCESSES), engines, seconds, CONNECTIONS, n),
            )
            for n in range(PROCESSES)
        ]
        # The children start in half a minute, and each has its batches half a minute later.
        here.wait(lambda: _leased(connection) > machines * SLOTS, 300)
        time.sleep(10)
        noted = ServerTimes(connection, here.folder / "postgres.log")
        before = _meters(here, connection)
        paused = [_pause(here, connection, number) for number in range(3)]
        while not all(each.done() for each in running):
            if not any(each.done() for each in running):
                after = _meters(here, connection)
            time.sleep(1)
        results = [each.result() for each in running]
    lines = [
        _latency(name, name, [taken for result in results for taken in result.taken[name]], seconds)
        for name in sorted(results[0].taken)
        if name != "kill"
    ]
    lines += [
        _latency(kind, f"{kind}, as Postgres measures it", taken, 0)
        for kind, taken in sorted(noted.end().items())
    ]
    late = [each for result in results for each in result.late]
    passed, done, cpu, wal, statements = (a - b for a, b in zip(after, before, strict=True))
    killed, failed = (sum(getattr(each, what) for each in results) for what in ("killed", "failed"))
    text = f"p50 {np.percentile(late, 50):.1f} ms, p99 {np.percentile(late, 99):.0f} ms"
    connections = PROCESSES * CONNECTIONS
    way = f"PgBouncer in transaction mode, {POOL_SIZE} connections" if own else "none: no PgBouncer"
    return [
        *lines,
        _line("between the simulation and Postgres", way),
        _line(f"wait for one of {connections} connections of the simulation", text),
        _line("batches committed", f"{done / passed:.1f} a second"),
        _line("Postgres", f"{1000 * cpu / done:.1f} ms CPU a batch, {cpu / passed:.2f} cores"),
        _line("WAL", f"{wal / done / 1000:.1f} kB a batch, {wal / passed / 1000:.0f} kB a second"),
        _line("transactions", f"{statements / passed:.0f} a second"),
        _line("kills, failed transactions", f"{killed}, {failed}"),
        Line(
            SECTION, "from the commit of a pause to the job's last claim",
            f"{max(paused):.2f} s", "", len(paused), report.spread(paused), "1 s",
            "met" if max(paused) <= 1 else "missed",
        ),
    ]  # fmt: skip


def _latency(kind: str, name: str, taken: list[float], seconds: float) -> Line:
    half, most = np.percentile(taken, [50, 99])
    text = f"p50 {half:.1f} ms, p99 {most:.1f} ms"
    if seconds:
        text += f", {len(taken) / seconds:.0f} a second"
    wanted = "p99 < 50 ms" if kind == "claim" else ""
    verdict = ("met" if most < 50 else f"missed by {most / 50 - 1:.0%}") if wanted else ""
    return Line(SECTION, name, text, "", len(taken), report.spread(taken), wanted, verdict)


def _line(name: str, text: str) -> Line:
    return Line(SECTION, name, text, "", 1, "")


def _pause(here: Fleet, connection: Any, number: int) -> float:
    """Seconds from the commit of a pause to the last claim of the job; 0 when none came later."""
    (job,) = connection.execute(
        "SELECT job_id FROM batches WHERE state = 'leased' GROUP BY job_id"
        " ORDER BY count(*) DESC OFFSET %s LIMIT 1", (number,)
    ).fetchone()  # fmt: skip
    with here.ledger.transaction() as transaction:
        jobs.pause(transaction, job)
    (at,) = connection.execute("SELECT clock_timestamp()").fetchone()
    time.sleep(3)
    (late,) = connection.execute(
        "SELECT coalesce(extract(epoch FROM max(claimed_at) - %s), 0)::float8 FROM attempts"
        " WHERE job_id = %s", (at, job)
    ).fetchone()  # fmt: skip
    with here.ledger.transaction() as transaction:
        jobs.resume(transaction, job)
    return max(0.0, float(late))


def _leased(connection: Any) -> int:
    found = connection.execute("SELECT count(*) FROM batches WHERE state = 'leased'").fetchone()
    return int(found[0])


def _meters(here: Fleet, connection: Any) -> tuple[float, float, float, float, float]:
    """Seconds, batches done, CPU seconds of Postgres, WAL bytes, transactions."""
    done, wal, transactions = connection.execute(
        "SELECT (SELECT count(*) FROM attempts WHERE outcome = 'done'),"
        " pg_current_wal_lsn() - '0/0', xact_commit + xact_rollback"
        " FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    cpu = here.cpu_seconds()["Postgres"]
    return time.monotonic(), float(done), cpu, float(wal), float(transactions)


if __name__ == "__main__":
    typer.run(main)
