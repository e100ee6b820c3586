"""`make bench-collect`: the parts of a finished job as one file, beside pyarrow's bare copy of them.

The job is real: a fleet with the `function` engine makes its parts. Both contenders read the same
parts in the same order and write one zstd Parquet file, fsynced.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks import report
from benchmarks.control import spec
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line, Median
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.results.collect import collect
from nightshift.producer.submit.submit import submit

WANTED = 0.8

LIMIT_SECONDS = 180.0
"""The benchmark fails when the fleet needs longer to make the parts."""

TEXT = (
    "The quick brown fox {number} jumps over the lazy dog and says {other:x} to all of the others."
)


def main(
    parts: Annotated[int, typer.Option(help="Parts of the job.")] = 1000,
    rows: Annotated[int, typer.Option(help="Rows of a part.")] = 2000,
    rounds: Annotated[int, typer.Option(help="How often each contender copies.")] = 7,
) -> None:
    """Measures rows a second of collect and of pyarrow alone, round by round."""
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as parent,
        fleet(Path(parent), log_level="warning") as here,
    ):
        job = finished(here, parts, rows)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            target = here.folder / "all.parquet"
            seconds = {}
            for name in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                begun = time.perf_counter()
                if name == "ours":
                    taken = collect(here.ledger, job, str(target))
                else:
                    taken = plain_copy(Path(job.output_uri), target)
                seconds[name] = time.perf_counter() - begun
                assert taken == parts * rows == pq.read_metadata(target).num_rows
                target.unlink()
            ours.append(taken / seconds["ours"])
            theirs.append(taken / seconds["theirs"])
            print(f"round {number + 1}: {ours[-1]:.3g} and {theirs[-1]:.3g} rows/s", flush=True)
    report.keep("collect", lines(ours, theirs))


def lines(ours: list[float], theirs: list[float]) -> list[Line]:
    """Both rates, and ours over theirs."""
    ratio = Median.of([one / other for one, other in zip(ours, theirs, strict=True)])
    middle = [Median.of(rates).value for rates in (ours, theirs)]
    return [
        Line(
            "collect",
            "nightshift collect",
            f"{middle[0]:.3g} rows/s",
            str(ratio),
            len(ours),
            report.spread(ours),
            f"{WANTED} of pyarrow",
            ratio.verdict(WANTED),
        ),
        Line(
            "collect",
            "pyarrow alone",
            f"{middle[1]:.3g} rows/s",
            "1",
            len(theirs),
            report.spread(theirs),
        ),
    ]


def plain_copy(folder: Path, target: Path) -> int:
    """What one would write by hand: each part whole, one after the other."""
    names = sorted(folder.glob("part-*.parquet"))
    taken = 0
    with target.open("wb") as file:
        schema = pq.read_schema(names[0]).remove_metadata()
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for name in names:
                table = pq.ParquetFile(name).read().replace_schema_metadata(None)
                writer.write_table(table)
                taken += table.num_rows
        file.flush()
        os.fsync(file.fileno())
    return taken


def finished(here: Fleet, parts: int, rows: int) -> Job:
    """A job of so many parts, run and closed."""
    source = here.folder / "rows.parquet"
    numbers = range(parts * rows)
    texts = [TEXT.format(number=number, other=number * 2_654_435_761) for number in numbers]
    pq.write_table(pa.table({"id": numbers, "text": texts}), source, row_group_size=100_000)
    job_id = submit(
        here.ledger,
        spec("collected", source, here.folder / "out", batch={"rows": rows}),
        here.settings,
    ).job_id
    here.reaper()
    here.worker()

    def closed() -> Job | None:
        with here.ledger.transaction() as connection:
            job = jobs.get(connection, job_id)
        return job if job is not None and job.closed_at is not None else None

    job = here.wait(closed, LIMIT_SECONDS)
    assert job is not None
    for name in ("worker", "reaper"):
        here.stop(name)
    return job


if __name__ == "__main__":
    typer.run(main)
