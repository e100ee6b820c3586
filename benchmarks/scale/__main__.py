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
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks import control, report
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from benchmarks.scale.children import SLOTS, Order, Result, simulate
from nightshift.common.ledger import jobs
from nightshift.producer.submit.submit import submit

POOLS = 3
JOBS = 100
PROCESSES = 2
CONNECTIONS = 12
"""Of each process; a real fleet has two or three for each child and one for each machine."""

SECTION = "1,000 children"


def main(
    machines: Annotated[int, typer.Option(help="Machines of 8 children each.")] = 125,
    seconds: Annotated[float, typer.Option(help="How long the fleet works.")] = 120,
    burst: Annotated[
        int, typer.Option(help="Batches to admit at once, and to take back.")
    ] = 60_000,
) -> None:
    """Measures claims, commits, heartbeats and looks, the time of a pause, and bursts of a reaper."""
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-scale-") as parent,
        fleet(Path(parent)) as here,
        psycopg.connect(here.ledger.url, autocommit=True) as connection,
    ):
        _submit(here, JOBS, max(100, int(machines * SLOTS * seconds / 30 / JOBS * 1.5)))
        lines = _steady(here, connection, machines, seconds)
        lines += _bursts(here, connection, burst)
    if (machines, burst) == (125, 60_000):
        report.keep("scale", lines)
    else:
        report.show("scale", lines)


def _submit(here: Fleet, count: int, rows: int, name: str = "job", pool: str | None = None) -> None:
    source = here.folder / f"{name}.parquet"
    pq.write_table(pa.table({"id": range(rows), "text": ["row"] * rows}), source)
    for number in range(count):
        where = pool or f"pool-{number % POOLS}"
        spec = control.spec(
            f"{name}-{number}", source, here.folder / f"{name}-{number}", pool=where
        )
        submit(here.ledger, spec, here.settings)


def _steady(here: Fleet, connection: Any, machines: int, seconds: float) -> list[Line]:
    engines = connection.execute("SELECT DISTINCT pool, engine_key FROM jobs").fetchall()
    orders = [
        Order(here.ledger.url, range(n, machines, PROCESSES), engines, seconds, CONNECTIONS, n)
        for n in range(PROCESSES)
    ]
    with _reapers(here), ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        running = [pool.submit(simulate, order) for order in orders]
        # The children start in half a minute, and each has its batches half a minute later.
        here.wait(lambda: _leased(connection) > machines * SLOTS, 300)
        time.sleep(10)
        before = _meters(here, connection)
        paused = [_pause(here, connection, number) for number in range(3)]
        while not all(each.done() for each in running):
            if not any(each.done() for each in running):
                after = _meters(here, connection)
            time.sleep(1)
        results = [each.result() for each in running]
    lines = [
        _latency(name, results, seconds) for name in sorted(results[0].taken) if name != "kill"
    ]
    late = [each for result in results for each in result.late]
    passed, done, cpu, wal, statements = (a - b for a, b in zip(after, before, strict=True))
    killed, failed = (sum(getattr(each, what) for each in results) for what in ("killed", "failed"))
    text = f"p50 {np.percentile(late, 50):.1f} ms, p99 {np.percentile(late, 99):.0f} ms"
    connections = PROCESSES * CONNECTIONS
    return [
        *lines,
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


def _latency(name: str, results: list[Result], seconds: float) -> Line:
    taken = [each for result in results for each in result.taken[name]]
    half, most = np.percentile(taken, [50, 99])
    text = f"p50 {half:.1f} ms, p99 {most:.1f} ms, {len(taken) / seconds:.0f} a second"
    wanted = "p99 < 50 ms" if name == "claim" else ""
    verdict = ("met" if most < 50 else f"missed by {most / 50 - 1:.0%}") if wanted else ""
    return Line(SECTION, name, text, "", len(taken), report.spread(taken), wanted, verdict)


def _line(name: str, text: str, rounds: int = 1, wanted: str = "", verdict: str = "") -> Line:
    return Line(SECTION, name, text, "", rounds, "", wanted, verdict)


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


def _bursts(here: Fleet, connection: Any, batches: int) -> list[Line]:
    """Two reapers admit so many batches, are back after a flush of Redis, and take leases back."""
    connection.execute("UPDATE jobs SET state = 'paused' WHERE state = 'running'")
    connection.execute("UPDATE workers SET state = 'ended', ended_at = now()")
    _submit(here, JOBS, batches // JOBS, "burst")
    connection.execute(
        "INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, state,"
        " window_rows, seen_at) SELECT 'b-' || n, 's', 'pool-' || n % 3, n, 'h', n,"
        " (SELECT max(engine_key) FROM jobs), 'ready', 512, now() + interval '1 hour'"
        " FROM generate_series(1, 1000) AS n"
    )
    connection.execute("VACUUM ANALYZE")
    total = batches // JOBS * JOBS
    with _reapers(here):
        admitted = _rate(connection, "queued", 0, total)
    connection.execute(
        "WITH held AS (UPDATE batches SET state = 'leased', attempt = attempt + 1, rank = NULL,"
        " owner = 'b-' || id %% 1000, lease_expires_at = now() - interval '1 s'"
        " WHERE state = 'queued' RETURNING *) INSERT INTO attempts (batch_id, attempt, job_id,"
        " worker_id, engine, engine_version, woken)"
        " SELECT id, attempt, job_id, owner, 'function', '1', 'poll' FROM held".replace("%%", "%")
    )
    # Nothing is admitted meanwhile, so that only what is taken back is counted.
    connection.execute("UPDATE jobs SET max_parallel = 1")
    connection.execute("VACUUM ANALYZE")
    with _reapers(here):
        reaped = _rate(connection, "leased", total, 0)
    met = "met" if admitted >= 10_000 else f"missed by {1 - admitted / 10_000:.0%}"
    seconds = 256_000 / reaped
    return [
        _line("two reapers admit", f"{admitted:.0f} batches/s", 1, "10,000 batches/s", met),
        _line(
            "two reapers take back expired leases",
            f"{reaped:.0f} a second: 256,000 in {seconds:.0f} s",
            1, "30 s", "met" if seconds <= 30 else f"missed by {seconds / 30 - 1:.0%}",
        ),
    ]  # fmt: skip


def _rate(connection: Any, state: str, begins: int, ends: int) -> float:
    """Batches a second that enter or leave a state, from the first to the last."""
    first: tuple[float, int] | None = None
    while True:
        (found,) = connection.execute(
            "SELECT coalesce(sum(CASE %s WHEN 'queued' THEN batches_queued ELSE batches_leased END),"
            " 0)::bigint FROM job_counters c JOIN jobs j ON j.id = c.job_id"
            " WHERE j.state = 'running'", (state,)
        ).fetchone()  # fmt: skip
        now = time.perf_counter()
        if first is None and found != begins:
            first = (now, found)
        if found == ends and first is not None:
            return abs(ends - first[1]) / (now - first[0])
        time.sleep(0.05)


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


@contextmanager
def _reapers(here: Fleet) -> Iterator[None]:
    names = ["reaper", "second reaper"]
    for name in names:
        here.reaper(name)
    try:
        yield
    finally:
        for name in names:
            here.stop(name)


if __name__ == "__main__":
    typer.run(main)
