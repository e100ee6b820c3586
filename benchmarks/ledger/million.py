"""A job of so many one-row batches: submitted as users do, then brought into the middle of its run.

Its states are made by plain SQL, but by the same moves as in a run (admitted, leased, done, a
transaction a few thousand), so that the table has the dead row versions of one.
"""

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.submit import submit

OWNERS = 16
LEASED = 200
QUEUED = 500
WINDOW_ROWS = 256
BATCHES_A_SECOND = 300
MOVED_AT_ONCE = 10_000
RENEWER = "w-0"
"""The owner of every lease: one large child, which renews all of them at once."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What planning and storing took: seconds, and the process's peak memory in MiB."""

    seconds: float
    peak: float


def store(url: str, folder: Path, batches: int) -> Stored:
    """Submits the job from a process of its own; returns what that took."""
    source = folder / "rows.parquet"
    pq.write_table(pa.table({"n": pa.array(range(batches), pa.int64())}), source)
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        return child.submit(_store, url, str(source), str(folder / "out"), batches).result()


def _store(url: str, source: str, output: str, batches: int) -> Stored:
    spec = parse_spec(
        {
            "name": "million",
            "input": {"uri": source},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "batch": {"rows": 1},
            "output": {"uri": output},
        },
        "the benchmark",
    )
    ledger = Ledger(url)
    began = time.perf_counter()
    done = submit(ledger, spec, Settings())
    seconds = time.perf_counter() - began
    ledger.close()
    assert done.batches == batches
    return Stored(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


WORKERS = f"""
    INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, state, window_rows,
                         ready_at)
    SELECT 'w-' || number, 's', pool, number, 'here', number, engine_key, 'ready', {WINDOW_ROWS},
           now()
    FROM jobs, generate_series(0, {OWNERS - 1}) AS number
"""

ADMITTED = """
    UPDATE batches b SET state = 'queued', queue = concat_ws('.', j.pool, j.engine_key),
           priority = j.priority, rank = b.seq
    FROM jobs j WHERE j.id = b.job_id AND b.seq >= %(first)s AND b.seq < %(stop)s
"""

CLAIMED = """
    WITH claimed AS (
        UPDATE batches SET state = 'leased', attempt = 1, owner = %(owner)s, rank = NULL,
               lease_expires_at = now() + interval '1 day'
        WHERE seq >= %(first)s AND seq < %(stop)s RETURNING *
    )
    INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken,
                          claimed_at)
    SELECT id, 1, job_id, owner, 'function', '1', 'message',
           now() - (%(of)s - seq + 500) * interval '1 second' / %(rate)s FROM claimed
"""

COMMITTED = """
    WITH committed AS (
        UPDATE batches SET state = 'done', lease_expires_at = NULL, output_tokens = 20,
               part_name = 'part-' || lpad(seq::text, 8, '0') || '-a1.parquet', part_bytes = 1000,
               part_checksum = repeat('a', 64), prompt_tokens = 10
        WHERE seq >= %(first)s AND seq < %(stop)s RETURNING *
    )
    UPDATE attempts a SET outcome = 'done', row_count = 1, rows_failed = 0, prompt_tokens = 10,
           output_tokens = 20, ended_at = now() - (%(of)s - c.seq) * interval '1 second' / %(rate)s
    FROM committed c WHERE a.batch_id = c.id
"""

REST_COMMITTED = """
    UPDATE batches SET state = 'done', attempt = 1, owner = 'w-1', lease_expires_at = NULL,
           rank = NULL, part_name = 'part-' || lpad(seq::text, 8, '0') || '-a1.parquet',
           part_bytes = 1000, part_checksum = repeat('a', 64), redo = NULL, redo_count = 0
    WHERE state <> 'done'
"""


def bring_midway(url: str, batches: int) -> None:
    """Three tenths done, some leased and some queued, nothing vacuumed yet."""
    done = batches * 3 // 10
    with psycopg.connect(url, autocommit=True) as connection:
        # Else chance decides at which of the measurements it runs.
        for table in ("batches", "attempts"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        connection.execute(WORKERS)
        connection.execute(
            "UPDATE jobs SET started_at = now() - %s * interval '1 second'",
            (batches / BATCHES_A_SECOND,),
        )
        for first in range(0, done, MOVED_AT_ONCE):
            moved = {
                "first": first,
                "stop": min(first + MOVED_AT_ONCE, done),
                "of": done,
                "rate": BATCHES_A_SECOND,
            }
            for move in (ADMITTED, CLAIMED, COMMITTED):
                connection.execute(move, {**moved, "owner": f"w-{first // MOVED_AT_ONCE % OWNERS}"})
        held = {"first": done, "of": done, "rate": BATCHES_A_SECOND, "owner": RENEWER}
        connection.execute(ADMITTED, {**held, "stop": done + LEASED + QUEUED})
        connection.execute(CLAIMED, {**held, "stop": done + LEASED})


def vacuum(url: str) -> None:
    """Does what autovacuum has done at this point of a real run."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE) batches, attempts, job_counters, jobs, workers")


def bring_over(url: str, output: Path) -> None:
    """Every batch done, and every part in its place (empty: finish looks at names alone)."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(REST_COMMITTED)
        connection.execute("VACUUM (ANALYZE) batches")
        named = connection.execute("SELECT part_name FROM batches WHERE state <> 'split'")
        output.mkdir(exist_ok=True)
        for (name,) in named:
            (output / name).touch()
