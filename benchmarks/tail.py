"""The end of a job: how long children stand idle because siblings hold its last batches.

Four children whose rows sleep, so that nothing but the distribution of the batches is measured: the
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
"""A job that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class Load:
    """One job: its rows, how many a batch, and what each of them sleeps (seconds)."""

    name: str
    rows: int
    batch_rows: int
    row_seconds: float


LOADS = (
    Load("1,024 rows in batches of 16", 1024, 16, 0.02),
    Load("256 rows in batches of 16", 256, 16, 0.08),
    Load("256 rows in batches of 64", 256, 64, 0.08),
)
"""A job of twice what the children hold at once, and two that a single window could swallow half
of (a window is 128 rows); each 5.12 s long at best.
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
    found: dict[str, list[Ending]] = {load.name: [] for load in LOADS}
    with running() as here:
        for number in range(rounds):
            for load in LOADS:
                ending = measured(here, load)
                found[load.name].append(ending)
                print(f"round {number + 1}, {load.name}: {shown(ending)}", flush=True)
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


def shown(ending: Ending) -> str:
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
        warm = submitted(here, Load("warm", 64, 1, 0.01))
        here.worker("--slots", str(CHILDREN))
        _wait(here, "SELECT count(*) = :wanted FROM workers WHERE state = 'ready'", CHILDREN)
        _wait(here, DONE, warm)
        yield here


def measured(here: Fleet, load: Load) -> Ending:
    """Runs one job and looks at when each child ended."""
    job = submitted(here, load)
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
        load.rows * load.row_seconds / CHILDREN,
        sum(makespan - last for last in lasts) / (CHILDREN * makespan),
        makespan - min(lasts),
    )


DONE = """
    SELECT sum(batches_pending + batches_queued + batches_leased) = 0
    FROM job_counters WHERE job_id = :wanted
"""


def submitted(here: Fleet, load: Load) -> int:
    """A job of its own with this load."""
    name = f"job-{time.monotonic_ns()}"
    source = here.folder / f"{name}.parquet"
    pq.write_table(
        pa.table({"id": range(load.rows), "seconds": [load.row_seconds] * load.rows}), source
    )
    job = spec(
        name,
        source,
        here.folder / name,
        engine={"backend": "function", "callable": "doze:doze"},
        batch={"rows": load.batch_rows},
    )
    return submit(here.ledger, job, here.settings).job_id


def _wait(here: Fleet, query: str, wanted: int) -> None:

    def true() -> bool:
        with here.ledger.transaction() as connection:
            return bool(connection.scalar(text(query), {"wanted": wanted}))

    here.wait(true, LIMIT_SECONDS, 0.1)


if __name__ == "__main__":
    typer.run(main)
