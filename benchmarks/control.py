"""The control plane: one-row batches through claim, part and commit, and the CPU that each costs.

Everything is real but the model: embedded Postgres and Redis, a reaper, a worker with one child.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from sqlalchemy import text

from benchmarks import report, spans
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from common.ledger import jobs
from common.spec import JobSpec
from producer.submit import submit

WANTED_A_SECOND = 300

PROFILE = "profile.jsonl"

LIMIT_SECONDS = 300.0
"""A run that takes longer is given up."""


def main(
    batches: Annotated[int, typer.Option(help="One-row batches a round.")] = 20_000,
    rounds: Annotated[int, typer.Option(help="How often.")] = 3,
) -> None:
    """Measures batches a second and machine CPU a batch, by component."""
    rates: list[float] = []
    costs: list[dict[str, float]] = []
    # Nothing is removed between rounds: ext4 searches past every file that was deleted lately.
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        for number in range(rounds):
            rate, cost = measured(Path(folder), batches)
            rates.append(rate)
            costs.append(cost)
            shown = ", ".join(f"{name} {1000 * each:.2f}" for name, each in cost.items())
            print(f"round {number + 1}: {rate:.0f} batches/s; CPU ms a batch: {shown}", flush=True)
        spans.show(Path(folder) / PROFILE)
    report.keep("control", lines(rates, costs))


def lines(rates: list[float], costs: list[dict[str, float]]) -> list[Line]:
    """The table: the rate against what is wanted, then each component's CPU a batch."""
    found = report.Median.of([rate / WANTED_A_SECOND for rate in rates])
    rate = report.Median.of(rates)
    head = Line(
        "control plane",
        "one-row batches, claim to commit",
        f"{rate} batches/s",
        str(found),
        len(rates),
        report.spread(rates),
        f"{WANTED_A_SECOND} batches/s",
        found.verdict(1.0),
    )
    parts = []
    for name in costs[0]:
        spent = [1000 * cost[name] for cost in costs]
        middle = report.Median.of(spent)
        said = f"{middle} ms CPU a batch"
        parts.append(Line("control plane", name, said, "", len(spent), report.spread(spent)))
    return [head, *parts]


def measured(folder: Path, batches: int) -> tuple[float, dict[str, float]]:
    """(batches a second from the first claim to the last commit, CPU seconds a batch by name)."""
    with fleet(
        folder, allowed_modules=("echo",), callable_paths=(str(Path(__file__).parent),)
    ) as here:
        warm = _submitted(here, "warm", 64)
        here.reaper()
        here.worker("--profile", str(folder / PROFILE))
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
        return batches / float(seconds), {
            name: (after[name] - before[name]) / batches for name in after
        }


def _submitted(here: Fleet, name: str, rows: int) -> int:
    source = here.folder / f"{name}.parquet"
    texts = [f"row {number} says something of medium length" for number in range(rows)]
    pq.write_table(pa.table({"id": range(rows), "text": texts}), source)
    return submit(here.ledger, spec(name, source, here.folder / name), here.settings).job_id


def spec(name: str, source: Path, output: Path, **sections: Any) -> JobSpec:
    """One row a batch through a callable that gives it back."""
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
    ends = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < ends:
        with here.ledger.transaction() as connection:
            progress = jobs.progress(connection, job_id)
        if progress["batches_done"] == progress["batches_total"]:
            return
        time.sleep(0.2)
    raise TimeoutError(f"not done within {LIMIT_SECONDS} s: {here.log('worker')}")


if __name__ == "__main__":
    typer.run(main)
