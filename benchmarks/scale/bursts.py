"""What two reapers do at once with very much: admit, send hints again to a Redis that was emptied, take
back expired leases.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from prometheus_client import CollectorRegistry

from benchmarks import control, report
from benchmarks.fleet import Fleet
from benchmarks.report import Line, Median
from nightshift.common.broker import queue_name
from nightshift.common.ledger import Ledger
from nightshift.producer.reaper.duty import Reaper
from nightshift.producer.reaper.loop import PRESSED_SPEEDUP, at_work
from nightshift.producer.reaper.metrics import Rounds
from nightshift.producer.submit.submit import submit

SECTION = "two reapers"
POOLS = 3
JOBS = 100
CHILDREN = 1_000
ROUNDS = 3

WANTED_RATE = 10_000
WANTED_FLUSH_SECONDS = 2.0
FLUSHED_BATCHES = 50_000
WANTED_REAP_SECONDS = 30.0

READY = """
    INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, state, window_rows, seen_at)
    SELECT 'b-' || n, 's', 'pool-' || n %% %(pools)s, n, 'h', n, (SELECT max(engine_key) FROM jobs),
           'ready', 512, now() + interval '1 hour'
    FROM generate_series(1, %(children)s) AS n
"""

LEASED = """
    WITH held AS (
        UPDATE batches SET state = 'leased', attempt = attempt + 1, rank = NULL,
               owner = 'b-' || id %% %(children)s, lease_expires_at = now() - interval '1 s'
        WHERE state IN ('pending', 'queued') RETURNING *
    )
    INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken)
    SELECT id, attempt, job_id, owner, 'function', '1', 'poll' FROM held
"""

OURS = "UPDATE jobs SET state = %s WHERE name LIKE 'burst-%%'"

COUNTED = """
    SELECT coalesce(sum(CASE %s WHEN 'queued' THEN batches_queued ELSE batches_leased END), 0)::bigint
    FROM job_counters c JOIN jobs j ON j.id = c.job_id WHERE j.state = 'running'
"""


def open_jobs(here: Fleet, count: int, rows: int, name: str) -> None:
    """Submits jobs of one-row batches, in turn to the pools."""
    source = here.folder / f"{name}.parquet"
    pq.write_table(pa.table({"id": range(rows), "text": ["row"] * rows}), source)
    for number in range(count):
        output, pool = here.folder / f"{name}-{number}", f"pool-{number % POOLS}"
        submit(here.ledger, control.spec(output.name, source, output, pool=pool), here.settings)


def measure(here: Fleet, connection: Any, batches: int, leases: int) -> list[Line]:
    """Every burst, with so many batches to admit and so many leases to take back."""
    connection.execute("UPDATE jobs SET state = 'paused' WHERE state = 'running'")
    connection.execute("UPDATE workers SET state = 'ended', ended_at = now()")
    open_jobs(here, JOBS, batches // JOBS, "burst")
    connection.execute(READY, {"pools": POOLS, "children": CHILDREN})
    total = batches // JOBS * JOBS
    lines = [_admission(here, connection, total)]
    if total >= FLUSHED_BATCHES:
        lines += _flush(here)
    open_jobs(here, JOBS, (leases - total) // JOBS, "expired")
    return [*lines, _expired(here, connection, total + (leases - total) // JOBS * JOBS)]


def _admission(here: Fleet, connection: Any, total: int) -> Line:
    """The first round, in which both reapers start and connect, is not counted."""
    rates = []
    connection.execute("VACUUM ANALYZE")
    with reapers(here):
        for _ in range(ROUNDS + 1):
            seconds, moved = _moved(connection, "queued", 0, total)
            rates.append(moved / seconds)
            connection.execute(OURS, ("paused",))
            connection.execute(
                "UPDATE batches SET state = 'pending', rank = NULL WHERE state = 'queued'"
            )
            connection.execute("VACUUM ANALYZE")
            time.sleep(2)  # each reaper has had a round without work
            connection.execute(OURS, ("running",))
        _moved(connection, "queued", 0, total)
    found = Median.of(rates[1:])
    return Line(
        SECTION, f"admit {total:,} batches of {JOBS} jobs",
        f"{found} batches/s; {rates[0]:.0f} while they start", "", ROUNDS,
        report.spread(rates[1:]), f"{WANTED_RATE:,} batches/s", found.verdict(WANTED_RATE),
    )  # fmt: skip


def _flush(here: Fleet) -> list[Line]:
    """Everything is queued. One of the two reapers runs here, where its rounds can be seen."""
    back, hinted = [], []
    with redis.Redis.from_url(here.settings.broker_url) as client:
        keys = [f"{queue_name(f'pool-{number}', '*')}" for number in range(POOLS)]

        def hints() -> int:
            return sum(client.llen(name) for key in keys for name in client.keys(key))

        here.reaper("second reaper")
        with watched(here) as rounds:
            for _ in range(ROUNDS):
                here.wait(lambda: hints() >= CHILDREN - POOLS, 60)
                began = time.monotonic()
                client.flushall()
                back.append(here.wait(partial(_next_end, rounds, began), 60, 0.01) - began)
                here.wait(lambda: hints() >= CHILDREN - POOLS, 60, 0.01)
                hinted.append(time.monotonic() - began)
        here.stop("second reaper")
    verdict = "met" if max(back) <= WANTED_FLUSH_SECONDS else "missed"
    text = f"{np.median(back):.2f} s; all hints sent again after {np.median(hinted):.2f} s"
    return [
        Line(
            SECTION, "from a flush of Redis to the end of the next whole round", text, "", ROUNDS,
            report.spread(back), f"{WANTED_FLUSH_SECONDS:g} s", verdict,
        )
    ]  # fmt: skip


def _next_end(rounds: list[tuple[float, float]], moment: float) -> float:
    """When the first round ended that began after this moment; 0 before."""
    return next((ended for began, ended in rounds if began >= moment), 0.0)


def _expired(here: Fleet, connection: Any, total: int) -> Line:
    connection.execute(LEASED, {"children": CHILDREN})
    # Nothing is admitted meanwhile, so that only what is taken back is counted.
    connection.execute("UPDATE jobs SET max_parallel = 1")
    connection.execute("VACUUM ANALYZE")
    with reapers(here):
        seconds, moved = _moved(connection, "leased", total, 0)
    text = f"{seconds:.1f} s, {moved / seconds:.0f} a second"
    met = "met" if seconds <= WANTED_REAP_SECONDS else "missed"
    name = f"take back {total:,} expired leases"
    return Line(SECTION, name, text, "", 1, "", f"{WANTED_REAP_SECONDS:g} s", met)


def _moved(connection: Any, state: str, begins: int, ends: int) -> tuple[float, int]:
    """Seconds from the first to the last batch that enters or leaves a state, and how many did after
    the first look that saw any.
    """
    first: tuple[float, int] | None = None
    while True:
        (found,) = connection.execute(COUNTED, (state,)).fetchone()
        now = time.perf_counter()
        if first is None and found != begins:
            first = (now, found)
        if found == ends and first is not None:
            return now - first[0], abs(ends - first[1])
        time.sleep(0.05)


@contextmanager
def reapers(here: Fleet) -> Iterator[None]:
    """Two reapers, each a process."""
    names = ["reaper", "second reaper"]
    for name in names:
        here.reaper(name)
    try:
        yield
    finally:
        for name in names:
            here.stop(name)


@contextmanager
def watched(here: Fleet) -> Iterator[list[tuple[float, float]]]:
    """A reaper in a thread; gives when its rounds began and ended."""
    rounds: list[tuple[float, float]] = []
    stop = threading.Event()
    ledger = Ledger(here.ledger.url)
    reaper = Reaper(ledger, here.settings, Rounds(CollectorRegistry()), delete=print)
    turns, _ = at_work(reaper)

    def run() -> None:
        while not stop.is_set():
            began = time.monotonic()
            turns.turn()
            rounds.append((began, time.monotonic()))
            stop.wait(here.settings.dispatch_seconds / (PRESSED_SPEEDUP if reaper.pressed else 1))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield rounds
    finally:
        stop.set()
        thread.join()
        reaper.at_end.close()
        ledger.close()
