"""`make bench-finished`: claims of one job beside very many finished batches, when autovacuum is due;
and the way of a finished job out of the ledger and back.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import psycopg
import typer
from rich.console import Console

from benchmarks.ledger import million, plans
from benchmarks.ledger.__main__ import postgres
from benchmarks.ledger.latency import Actors, Operation, line, measure
from benchmarks.report import Line, keep, show
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import archives, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.producer import closed_jobs
from nightshift.producer.archive import retention

T = TypeVar("T")

SECTION = "finished batches"
JOB_BATCHES = 1_000_000
LIVE_BATCHES = 400_000
STORED_AT_ONCE = 50_000
MOVED_AT_ONCE = 1_000
WANTED_MS = 10.0

MOST_BYTES = 15 * 2**30
BYTES_A_BATCH = 1_200
"""Disk that the benchmark takes at most; and that a finished batch with its attempt takes, with WAL."""

VERSIONS = 3
"""Dead row versions that a batch leaves: admitted, claimed, committed."""

BEFORE = (50, 0.01)
"""Threshold and scale factor of the vacuum of `batches` before they were set for it."""

NEW_JOB = """
    INSERT INTO jobs (name, pool, priority, engine_key, state, spec, identity, spec_identity,
                      output_uri, max_failed_fraction, input_schema, output_schema, finished_at,
                      closed_at)
    SELECT name, pool, priority, engine_key, 'completed', spec, %(place)s, spec_identity,
           output_uri || %(place)s, max_failed_fraction, input_schema, output_schema, now(), now()
    FROM jobs ORDER BY id LIMIT 1 RETURNING id, output_uri
"""

NEW_BATCHES = """
    WITH made AS (
        INSERT INTO batches (job_id, seq, file_index, rows, row_count, state, queue, priority,
                             attempt, owner, part_name, part_bytes, part_checksum, prompt_tokens,
                             output_tokens)
        SELECT j.id, n, 0, int8multirange(int8range(n, n + 1)), 1, 'done',
               concat_ws('.', j.pool, j.engine_key), j.priority, 1, 'w-' || n %% 16,
               'part-' || lpad(n::text, 8, '0') || '-a1.parquet', 1000, repeat('a', 64), 10, 20
        FROM jobs j, generate_series(%(first)s, %(stop)s - 1) AS n WHERE j.id = %(job)s
        RETURNING id, job_id, owner
    )
    INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken,
                          claimed_at, ended_at, outcome, row_count, rows_failed, prompt_tokens,
                          output_tokens)
    SELECT id, 1, job_id, owner, 'function', '1', 'message', now() - interval '30 s', now(), 'done',
           1, 0, 10, 20
    FROM made
"""

MOVES = (
    """UPDATE batches b SET state = 'queued', queue = concat_ws('.', j.pool, j.engine_key),
              priority = j.priority, rank = b.seq
       FROM jobs j WHERE j.id = b.job_id AND b.job_id = %(job)s AND b.seq >= %(first)s
         AND b.seq < %(stop)s""",
    """UPDATE batches SET state = 'leased', attempt = 1, owner = 'w-1', rank = NULL,
              lease_expires_at = now() + interval '1 day'
       WHERE job_id = %(job)s AND seq >= %(first)s AND seq < %(stop)s""",
    """UPDATE batches SET state = 'done', lease_expires_at = NULL, part_bytes = 1000,
              part_name = 'part-' || lpad(seq::text, 8, '0') || '-a1.parquet',
              part_checksum = repeat('a', 64), prompt_tokens = 10, output_tokens = 20
       WHERE job_id = %(job)s AND seq >= %(first)s AND seq < %(stop)s""",
)
"""Those of a run, each a transaction, so that the indexes have the dead entries of one."""

console = Console(highlight=False)


class Live:
    """The job that runs: from its end on, batches are moved by SQL; from its start, by claims."""

    def __init__(self, url: str, ledger: Ledger, batches: int) -> None:
        with ledger.transaction() as connection:
            self.job = jobs.find(connection, "million")
        self._url, self._ledger, self._next = url, ledger, batches
        self._half: dict[int, float] = {}
        self.actors = Actors(self.job.id, self.job.spec.pool, self.job.spec.engine_key, batches)

    def move(self, batches: int) -> None:
        """So many batches are done, as in a run."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            for _ in range(0, batches, MOVED_AT_ONCE):
                self._next -= MOVED_AT_ONCE
                piece = {"first": self._next, "stop": self._next + MOVED_AT_ONCE}
                for move in MOVES:
                    connection.execute(move, {**piece, "job": self.job.id})

    def claims(self, what: str, calls: int) -> list[Line]:
        """Claims of 1 and of 16 batches."""
        lines = []
        for most in (1, 16):
            act = partial(self.actors.claim, most=most)
            name = f"claim {most}, {what}"
            # The first claim of all passes over what no claim has seen to be dead.
            looked_at = plans.blocks(self._ledger, act)
            taken = measure(self._ledger, Operation(name, act, self.actors.refill), calls)
            measured = line(SECTION, name, taken, WANTED_MS)
            half = float(np.median(taken))
            ratio = f"p50 {half / self._half.setdefault(most, half):.2f} of that beside none"
            text = f"{measured.rate}; {plans.blocks(self._ledger, act):,} blocks, {looked_at:,} at first"
            lines.append(replace(measured, rate=text, ratio=ratio))
            console.print(f"{name}: {lines[-1].rate}")
        return lines


def main(
    batches: Annotated[int, typer.Option(min=10_000, help="Finished batches.")] = 1_000_000,
    calls: Annotated[int, typer.Option(min=10, help="Calls of each kind.")] = 500,
) -> None:
    """Measure claims beside finished batches, and a job that leaves the ledger."""
    folder = Path(tempfile.mkdtemp(prefix="bench-finished-"))
    try:
        _check_room(folder, batches)
        with postgres(folder / "home") as url:
            million.store(url, folder, LIVE_BATCHES)
            lines = _measured(url, batches, calls)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (keep if batches == 1_000_000 else show)("finished", lines)


def _check_room(folder: Path, batches: int) -> None:
    needed = (batches + LIVE_BATCHES) * BYTES_A_BATCH
    free = shutil.disk_usage(folder).free
    if needed > min(free, MOST_BYTES):
        raise SystemExit(
            f"{batches:,} batches need {needed / 2**30:.0f} GiB of disk, {free / 2**30:.0f} GiB are "
            f"free, and {MOST_BYTES / 2**30:.0f} GiB is the most: give fewer --batches"
        )


def _check_size(connection: psycopg.Connection[tuple[int]]) -> None:
    [(size,)] = connection.execute("SELECT pg_database_size(current_database())")
    if size > MOST_BYTES:
        raise SystemExit(f"the database has {size / 2**30:.0f} GiB by now: give fewer --batches")


def _measured(url: str, batches: int, calls: int) -> list[Line]:
    ledger = Ledger(url, connections=4)
    live = Live(url, ledger, LIVE_BATCHES)
    with psycopg.connect(url, autocommit=True) as connection:
        # Else chance decides at which of the measurements it runs.
        for table in ("batches", "attempts"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    _vacuum(url)
    lines = live.claims("none finished", calls)
    seconds, finished = _timed(lambda: _store(url, batches))
    console.print(f"stored {batches:,} in {seconds:.0f} s; vacuum {_vacuum(url):.1f} s")
    lines += live.claims(f"{batches:,} finished", calls)
    for name, settings in (("1 % of all", BEFORE), ("as it is set", _as_set(url))):
        threshold, scale = settings
        dead = int(threshold + scale * batches)
        live.move(dead // VERSIONS)
        lines += live.claims(f"{batches:,} finished, vacuum due by {name}", calls)
        text = f"{_vacuum(url, analyze=False):.1f} s after {dead:,} dead row versions"
        lines.append(Line(SECTION, f"vacuum of batches due by {name}", text, "", 1, ""))
        console.print(f"vacuum due by {name}: {text}")
    lines += _leaving(ledger, live, url, finished, calls)
    ledger.close()
    return lines


def _store(url: str, batches: int) -> Job:
    """Finished jobs of up to a million batches; the last of them, which can leave."""
    with psycopg.connect(url, autocommit=True) as connection:
        for place, left in enumerate(range(batches, 0, -JOB_BATCHES)):
            [(job_id, output_uri)] = connection.execute(NEW_JOB, {"place": f"-{place}"})
            size = min(left, JOB_BATCHES)
            for first in range(0, size, STORED_AT_ONCE):
                piece = {"first": first, "stop": min(first + STORED_AT_ONCE, size)}
                connection.execute(NEW_BATCHES, {**piece, "job": job_id})
                _check_size(connection)
    output = Path(output_uri)
    output.mkdir()
    (output / "_manifest.json").touch()
    ledger = Ledger(url)
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    ledger.close()
    assert job is not None
    return job


def _leaving(ledger: Ledger, live: Live, url: str, job: Job, calls: int) -> list[Line]:
    """A job leaves while others claim, and is read from its archive."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE jobs SET closed_at = now() - interval '2 days' WHERE id = %s", (job.id,)
        )
        [(size,)] = connection.execute("SELECT count(*) FROM batches WHERE job_id = %s", (job.id,))
    # A process of its own, as a reaper is.
    with ProcessPoolExecutor(1, get_context("spawn")) as reaper:
        leaving = reaper.submit(_leave, url)
        lines = live.claims(f"while {size:,} leave", calls)
        seconds = leaving.result()
    with ledger.transaction() as connection:
        assert archives.need(connection, job.id).files
    bytes_written = sum(file.stat().st_size for file in Path(job.output_uri, "_ledger").iterdir())
    text = f"{seconds:.0f} s, {bytes_written / 2**20:.0f} MiB of files"
    lines.append(Line(SECTION, f"{size:,} batches and attempts leave", text, "", 1, ""))
    vacuum = _vacuum(url, analyze=False)
    seconds, _ = _timed(lambda: _read(ledger, job))
    lines.append(Line(SECTION, f"{size:,} are loaded to be read", f"{seconds:.0f} s", "", 1, ""))
    for each in lines[-2:]:
        console.print(f"{each.contender}: {each.rate}")
    console.print(f"vacuum after they left: {vacuum:.1f} s")
    return lines


def _read(ledger: Ledger, job: Job) -> None:
    with closed_jobs.readable(ledger, job):
        pass


def _as_set(url: str) -> tuple[int, float]:
    """Threshold and scale factor of the vacuum of `batches` in these tables."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT option_name, option_value FROM pg_class, pg_options_to_table(reloptions)"
            " WHERE oid = 'batches'::regclass"
        )
        options: dict[str, str] = dict(found.fetchall())
    threshold = options.get("autovacuum_vacuum_threshold", "50")
    return int(threshold), float(options["autovacuum_vacuum_scale_factor"])


def _vacuum(url: str, *, analyze: bool = True) -> float:
    """Vacuums as autovacuum does, at its pace; returns seconds."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET vacuum_cost_delay = 2")
        connection.execute("VACUUM job_counters")
        if analyze:
            connection.execute("VACUUM (ANALYZE) attempts")
        options = "(ANALYZE)" if analyze else ""
        return _timed(lambda: connection.execute(f"VACUUM {options} batches"))[0]


def _leave(url: str) -> float:
    """Archives what is due; returns seconds."""
    ledger = Ledger(url, connections=1)
    settings = Settings(retention_days=1)
    seconds, _ = _timed(lambda: retention.archive_due(ledger, settings, threading.Event()))
    ledger.close()
    return seconds


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    done = work()
    return time.perf_counter() - began, done


if __name__ == "__main__":
    typer.run(main)
