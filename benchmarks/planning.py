"""`make bench-planning`: Parquet footers in parallel, and the line scan of JSONL beside `wc -l`."""

import os
import random
import resource
import subprocess
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks import report
from benchmarks.report import Line, Median
from nightshift.common.formats.jsonl.plan import scan_lines
from nightshift.common.spec import InputSpec
from nightshift.producer.submit.planning import planner

FILES, FILE_ROWS = 1000, 100_000
"""100 million rows: one column, all nulls, so that footers are real and files are small."""

LINE_BYTES = (20, 100, 1000, 5000)
BATCH_ROWS = 256
WANTED = 0.8
BLOCK_BYTES = 4 * 2**20


def main(
    mebibytes: Annotated[int, typer.Option(help="Size of each JSONL file.")] = 512,
    rounds: Annotated[int, typer.Option(help="How often each is done.")] = 9,
) -> None:
    """Measures planning, each JSONL file alternately with `wc -l`."""
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as name:
        folder = Path(name)
        found = footers(folder / "parquet")
        for size in LINE_BYTES:
            found.append(scan(folder / "lines.jsonl", size, mebibytes, rounds))
        found.append(memory(folder / "lines.jsonl"))
    report.keep("planning", found)


def footers(folder: Path) -> list[Line]:
    """100 million rows of 1,000 files, with all threads and with one."""
    folder.mkdir()
    first = folder / "0000.parquet"
    table = pa.table({"id": pa.nulls(FILE_ROWS, pa.int64()), "text": pa.nulls(FILE_ROWS)})
    pq.write_table(table.cast(pa.schema([("id", pa.int64()), ("text", pa.string())])), first)
    content = first.read_bytes()
    for number in range(1, FILES):
        (folder / f"{number:04}.parquet").write_bytes(content)
    lines = []
    for threads in (planner.PLANNING_THREADS, 1):
        seconds, cpu = [], []
        for _ in range(3):
            begun, spent = time.perf_counter(), time.process_time()
            plan = _plan(folder, threads)
            seconds.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - spent)
        assert plan.rows_total == FILES * FILE_ROWS
        lines.append(
            Line(
                "planning",
                f"100 M Parquet rows, 1,000 footers, threads: {threads}",
                f"{Median.of(seconds)} s",
                "",
                len(seconds),
                f"{report.spread(seconds)} s, CPU {Median.of(cpu).value:.2g} s",
            )
        )
    begun = time.perf_counter()
    count = sum(1 for _ in plan.batches())
    lines.append(
        Line(
            "planning",
            f"{count:,} batches of {BATCH_ROWS} rows, made one by one",
            f"{time.perf_counter() - begun:.3g} s",
            "",
            1,
            "",
        )
    )
    return lines


def _plan(folder: Path, threads: int) -> planner.Plan:
    usual, planner.PLANNING_THREADS = planner.PLANNING_THREADS, threads
    try:
        return planner.plan(InputSpec(uri=str(folder)), BATCH_ROWS)
    finally:
        planner.PLANNING_THREADS = usual


def scan(path: Path, line_bytes: int, mebibytes: int, rounds: int) -> Line:
    """Bytes a second of the scan over those of `wc -l`, round by round, from the page cache."""
    _write(path, line_bytes, mebibytes)
    size = path.stat().st_size
    expected = _wc(path)[0]
    ratios: list[float] = []
    cpu: list[float] = []
    rates: list[float] = []
    for number in range(rounds):
        for name in ("wc", "scan") if number % 2 else ("scan", "wc"):
            if name == "wc":
                _, wc_seconds, wc_cpu = _wc(path)
            else:
                begun, spent = time.perf_counter(), time.process_time()
                found = scan_lines(str(path), BATCH_ROWS)
                seconds, scan_cpu = time.perf_counter() - begun, time.process_time() - spent
        assert found.rows == expected
        assert found.ends[-1] == size
        ratios.append(wc_seconds / seconds)
        cpu.append(scan_cpu / wc_cpu)
        rates.append(size / seconds / 1e9)
    ratio = Median.of(ratios)
    return Line(
        "planning",
        f"JSONL, lines of about {line_bytes} bytes, beside wc -l",
        f"{Median.of(rates).value:.3g} GB/s, CPU {Median.of(cpu).value:.2g} of wc",
        str(ratio),
        rounds,
        f"{report.spread(rates)} GB/s",
        f"{WANTED} of wc -l",
        ratio.verdict(WANTED),
    )


def memory(path: Path) -> Line:
    """What the scan allocates at its peak, numpy's arrays included, beside the ends themselves."""
    tracemalloc.start()
    found = scan_lines(str(path), BATCH_ROWS)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    peak = (peak_bytes - 8 * len(found.ends)) / 2**20
    return Line("planning", "JSONL, memory of the scan", f"{peak:.3g} MiB", "", 1, "", "64 MiB")


def _write(path: Path, line_bytes: int, mebibytes: int) -> None:
    random.seed(line_bytes)
    block = bytearray()
    while len(block) < BLOCK_BYTES:
        size = int(line_bytes * random.uniform(0.75, 1.25)) - 9
        block += b'{"t": "%s"}\n' % (b"some text " * (size // 10 + 1))[: max(1, size)]
    with path.open("wb") as file:
        for _ in range(max(1, mebibytes * 2**20 // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _wc(path: Path) -> tuple[int, float, float]:
    """(lines, seconds, CPU seconds)."""
    before, begun = _children_seconds(), time.perf_counter()
    done = subprocess.run(["wc", "-l", path], capture_output=True, check=True)
    seconds = time.perf_counter() - begun
    return int(done.stdout.split()[0]), seconds, _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
