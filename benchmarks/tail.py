"""The end of a job: how long children stand idle because siblings hold its last batches.

The rows of four children sleep, so that only the distribution of the batches is measured: the
makespan against the ideal (all sleep over all children), and the share of the children's time that
was lost after each one's last batch.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from sqlalchemy import text

from benchmarks import report
from benchmarks.control import spec
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from nightshift.producer.submit.submit import submit

CHILDREN = 4

LIMIT_SECONDS = 120.0
"""The benchmark fails when a job takes longer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One job: its rows, the rows of a batch, and the seconds that each row sleeps."""

    name: str
    rows: int
    batch_rows: int
    row_seconds: float


WORKLOADS = (
    Workload("1,024 rows in batches of 16", 1024, 16, 0.02),
    Workload("256 rows in batches of 16", 256, 16, 0.08),
    Workload("256 rows in batches of 64", 256, 64, 0.08),
)
"""A job of twice the rows that the children hold at once, and two jobs of which a single window (128
rows) could hold half; each takes 5.12 s at best.
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one job ended; seconds from its first claim to its last commit."""

    makespan: float
    ideal: float
    idle_share: float
    uneven: float

    @property
    def efficiency(self) -> float:
        """The ideal over the makespan."""
        return self.ideal / self.makespan


def main(rounds: Annotated[int, typer.Option(help="Jobs of each load.")] = 5) -> None:
    """Measures the end of jobs with four children of one worker."""
    found: dict[str, list[Ending]] = {workload.name: [] for workload in WORKLOADS}
    with running() as here:
        for number in range(rounds):
            for workload in WORKLOADS:
                ending = measured(here, workload)
                found[workload.name].append(ending)
                print(f"round {number + 1}, {workload.name}: {text_of(ending)}", flush=True)
    report.keep("tail", [line(name, endings) for name, endings in found.items()])


def line(name: str, endings: list[Ending]) -> Line:
    """One load in the table."""
    rates = [ending.efficiency for ending in endings]
    idle = report.Median.of([100 * ending.idle_share for ending in endings])
    return Line(
        f"end of a job, {CHILDREN} children",
        f"{name}, against no idle child",
        f"{idle} % of the children's time idle after their last batch",
        str(report.Median.of(rates)),
        len(endings),
        report.spread([ending.makespan for ending in endings]) + " s",
    )


def text_of(ending: Ending) -> str:
    """One job in a line."""
    return (
        f"{ending.makespan:.2f} s, {ending.efficiency:.3f} of ideal, idle "
        f"{ending.idle_share:.1%}, {ending.uneven:.2f} s from the first child's end to the last's"
    )


@contextmanager
def running() -> Iterator[Fleet]:
    """A fleet whose children are all ready."""
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as scratch,
        fleet(Path(scratch), log_level="warning") as here,
    ):
        here.reaper()
        warm = submitted(here, Workload("warm", 64, 1, 0.01))
        here.worker("--slots", str(CHILDREN))
        _wait(here, "SELECT count(*) = :wanted FROM workers WHERE state = 'ready'", CHILDREN)
        _wait(here, DONE, warm)
        yield here


def measured(here: Fleet, workload: Workload) -> Ending:
    """Runs one job and reads when each child ended."""
    job = submitted(here, workload)
    _wait(here, DONE, job)
    with here.ledger.transaction() as connection:
        ends = connection.execute(
            text("""
                SELECT worker_id, extract(epoch FROM max(ended_at) - min(min(claimed_at)) OVER ())
                FROM attempts WHERE job_id = :job GROUP BY worker_id
            """),
            {"job": job},
        ).all()
    lasts = [float(end) for _, end in ends] + [0.0] * (CHILDREN - len(ends))
    makespan = max(lasts)
    return Ending(
        makespan,
        workload.rows * workload.row_seconds / CHILDREN,
        sum(makespan - last for last in lasts) / (CHILDREN * makespan),
        makespan - min(lasts),
    )


DONE = """
    SELECT sum(batches_pending + batches_queued + batches_leased) = 0
    FROM job_counters WHERE job_id = :wanted
"""


def submitted(here: Fleet, workload: Workload) -> int:
    """A job of its own with this load."""
    name = f"job-{time.monotonic_ns()}"
    source = here.folder / f"{name}.parquet"
    pq.write_table(
        pa.table({"id": range(workload.rows), "seconds": [workload.row_seconds] * workload.rows}),
        source,
    )
    job = spec(
        name,
        source,
        here.folder / name,
        engine={"backend": "function", "callable": "doze:doze"},
        batch={"rows": workload.batch_rows},
    )
    return submit(here.ledger, job, here.settings).job_id


def _wait(here: Fleet, query: str, wanted: int) -> None:

    def true() -> bool:
        with here.ledger.transaction() as connection:
            return bool(connection.scalar(text(query), {"wanted": wanted}))

    here.wait(true, LIMIT_SECONDS, 0.1)


if __name__ == "__main__":
    typer.run(main)
