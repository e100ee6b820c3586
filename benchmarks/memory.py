"""`make bench-memory`: a child's memory over 1,000 batches, and over ten times the rows.

The child is a real one with the `function` engine. Its unique set size (what would be free if it
ended) is sampled while it works.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks import report
from benchmarks.control import spec
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from nightshift.common.ledger.jobs import jobs
from nightshift.producer.submit.submit import submit

FILES = 100
PAUSE_SECONDS = 0.1
LIMIT_SECONDS = 150.0

WANTED_MIB = 16.0
"""More than that between the first and the last quarter is growth, not noise."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The child at one moment: batches done so far, and MiB of its own."""

    done: int
    own: float


def main(
    batches: Annotated[int, typer.Option(help="Batches of each dataset.")] = 1000,
    rows: Annotated[int, typer.Option(help="Rows of a batch.")] = 64,
    read_cache: Annotated[int, typer.Option(help="MiB of decoded input kept by a child.")] = 1,
) -> None:
    """Samples one child over a dataset and another over one with ten times the rows."""
    small = watched(batches, rows, 1, read_cache)
    large = watched(batches, rows, 10, read_cache)
    low, high = (_quarter(samples, last=True) for samples in (small, large))
    grown = f"{high - low:+.3g} MiB"
    independent = Line(
        "memory",
        "ten times the rows, last quarters",
        grown,
        f"{high / low:.3g}",
        1,
        "",
        f"{WANTED_MIB:g} MiB",
        "met" if high - low <= WANTED_MIB else "missed",
    )
    report.keep(
        "memory",
        [line("the dataset", small), line("ten times the rows", large), independent],
    )


def line(name: str, samples: list[Sample]) -> Line:
    """First and last quarter of a run, and the slope over its last three quarters."""
    first, last = _quarter(samples, last=False), _quarter(samples, last=True)
    steady = [each for each in samples if each.done >= samples[-1].done / 4]
    slope = np.polyfit([each.done for each in steady], [each.own for each in steady], 1)[0]
    owned = [each.own for each in samples]
    return Line(
        "memory",
        f"{name}: {samples[-1].done} batches, first and last quarter",
        f"{first:.4g} and {last:.4g} MiB, {1000 * slope:+.2g} MiB per 1,000 batches",
        f"{last / first:.3g}",
        1,
        f"{report.spread(owned)} MiB",
        f"{WANTED_MIB:g} MiB",
        "met" if last - first <= WANTED_MIB else f"missed by {last - first - WANTED_MIB:.3g} MiB",
    )


def _quarter(samples: list[Sample], *, last: bool) -> float:
    """The median of a quarter of the batches."""
    total = samples[-1].done
    low, high = (0.75 * total, total) if last else (0.05 * total, 0.25 * total)
    return float(np.median([each.own for each in samples if low <= each.done <= high]))


def watched(batches: int, rows: int, times: int, read_cache: int) -> list[Sample]:
    """The first `batches` batches of a dataset that has `times` as many, by one child."""
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as parent,
        fleet(Path(parent), log_level="warning", read_cache_bytes=read_cache * 2**20) as here,
    ):
        job = _submitted(here, batches, rows, times)
        here.reaper()
        here.worker()
        samples: list[Sample] = []

        def sampled() -> bool:
            with here.ledger.transaction() as connection:
                done = jobs.progress(connection, job)["batches_done"]
            if done and (own := _own_mib(here)):
                samples.append(Sample(done, own))
            return bool(done >= batches)

        here.wait(sampled, LIMIT_SECONDS, PAUSE_SECONDS)
        return samples


def _submitted(here: Fleet, batches: int, rows: int, times: int) -> int:
    source = here.folder / "in"
    source.mkdir()
    each = batches * rows * times // FILES
    for number in range(FILES):
        first = number * each
        texts = [f"row {first + at} says something of medium length" for at in range(each)]
        table = pa.table({"id": range(first, first + each), "text": texts})
        pq.write_table(table, source / f"{number:04}.parquet")
    found = submit(
        here.ledger,
        spec("watched", source, here.folder / "out", batch={"rows": rows}),
        here.settings,
    )
    return found.job_id


def _own_mib(here: Fleet) -> float:
    """The unique set size of the greatest process of the worker: its child."""
    owned = []
    for process in psutil.Process(here.groups["worker"].pid).children(recursive=True):
        try:
            owned.append(process.memory_full_info().uss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return max(owned, default=0.0)


if __name__ == "__main__":
    typer.run(main)
