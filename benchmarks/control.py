"""The control plane: one-row batches through claim, part and commit, and the CPU that each costs.

Everything is real but the model: embedded Postgres and Redis, a reaper, a worker with one child.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from sqlalchemy import text

from benchmarks import report
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line, Median
from nightshift.common.ledger.jobs import jobs
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.submit import submit

WANTED_A_SECOND = 300

LIMIT_SECONDS = 300.0
"""The benchmark fails when a run takes longer."""

CONTENDERS = {"as it is": False, "worker kept to one core": True}
"""What is measured, and whether the worker may use one core only, as by `taskset -c 1`."""


@dataclass(frozen=True, slots=True)
class Round:
    """Batches a second, and CPU seconds a batch by component."""

    rate: float
    cpu_seconds: dict[str, float]

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {1000 * each:.2f}" for name, each in self.cpu_seconds.items())
        return f"{self.rate:.0f} batches/s; CPU ms a batch: {spent}"


def main(
    batches: Annotated[int, typer.Option(help="One-row batches a round.")] = 20_000,
    rounds: Annotated[int, typer.Option(help="How often each contender runs.")] = 3,
) -> None:
    """Measures batches a second and machine CPU a batch, by component."""
    found: dict[str, list[Round]] = {name: [] for name in CONTENDERS}
    # Nothing is removed between rounds: ext4 searches past every file that was deleted lately.
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as parent:
        for number in range(rounds):
            for name, on_one_core in CONTENDERS.items():
                folder = Path(parent) / name.replace(" ", "-")
                folder.mkdir(exist_ok=True)
                found[name].append(measured(folder, batches, on_one_core))
                print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)
    report.keep("control", [line for name in CONTENDERS for line in lines(name, found[name])])


def lines(name: str, found: list[Round]) -> list[Line]:
    """The table: the rate against what is wanted, then each component's CPU a batch."""
    rates = [each.rate for each in found]
    ratio = Median.of([rate / WANTED_A_SECOND for rate in rates])
    head = Line(
        "control plane, one-row batches from claim to commit",
        name,
        f"{Median.of(rates)} batches/s",
        f"{ratio} of what is wanted",
        len(rates),
        report.spread(rates),
        f"{WANTED_A_SECOND} batches/s",
        ratio.verdict(1.0),
    )
    parts = []
    for component in found[0].cpu_seconds:
        spent = [1000 * each.cpu_seconds[component] for each in found]
        said = f"{Median.of(spent)} ms CPU a batch"
        parts.append(
            Line(
                "control plane", f"{name}: {component}", said, "", len(spent), report.spread(spent)
            )
        )
    return [head, *parts]


def measured(folder: Path, batches: int, on_one_core: bool) -> Round:
    """One round: a fleet of its own; time runs from the first claim to the last commit."""
    cores = {max(os.sched_getaffinity(0))} if on_one_core else None
    with fleet(folder) as here:
        warm = _submitted(here, "warm", 64)
        here.reaper()
        here.worker(cores=cores)
        _wait(here, warm)
        job = _submitted(here, "many", batches)
        before = here.cpu_seconds()
        _wait(here, job)
        after = here.cpu_seconds()
        with here.ledger.transaction() as connection:
            seconds = connection.scalar(
                text("""
                    SELECT extract(epoch FROM max(ended_at) - min(claimed_at)) FROM attempts
                    WHERE job_id = :job AND outcome = 'done'
                """),
                {"job": job},
            )
        spent = {name: (after[name] - before[name]) / batches for name in after}
        return Round(batches / float(seconds), spent)


def _submitted(here: Fleet, name: str, rows: int) -> int:
    source = here.folder / f"{name}.parquet"
    texts = [f"row {number} says something of medium length" for number in range(rows)]
    pq.write_table(pa.table({"id": range(rows), "text": texts}), source)
    return submit(here.ledger, spec(name, source, here.folder / name), here.settings).job_id


def spec(name: str, source: Path, output: Path, **sections: Any) -> JobSpec:
    """A spec with one row a batch and a callable that returns the row."""
    return JobSpec.model_validate(
        {
            "name": name,
            "input": {"uri": str(source), "id": "id"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "echo:echo"},
            "batch": {"rows": 1},
            "output": {"uri": str(output)},
            **sections,
        }
    )


def _wait(here: Fleet, job_id: int) -> None:
    """Until the last commit: what finish does with the files afterwards is not counted."""

    def done() -> bool:
        with here.ledger.transaction() as connection:
            progress = jobs.progress(connection, job_id)
        return bool(progress["batches_done"] == progress["batches_total"])

    here.wait(done, LIMIT_SECONDS)


if __name__ == "__main__":
    typer.run(main)
