"""The fleet over one model: a worker, jobs of it one after the other, and their answers beside the library's."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

from benchmarks.embed import library
from benchmarks.embed.library import LONGEST, Size
from benchmarks.engine.__main__ import embedded
from benchmarks.engine.contender import START_SECONDS, WORK_SECONDS, process
from benchmarks.engine.fleet import run_job
from benchmarks.fleet import tree_seconds
from nightshift.common.processes.process_group import ProcessGroup


@contextmanager
def servers(home: Path) -> Iterator[dict[str, str]]:
    """Postgres, Redis and a reaper; the settings that find them."""
    with embedded(home / "home") as (database_url, broker_url):
        urls = {"database_url": database_url, "broker_url": broker_url}
        reaper = [sys.executable, "-m", "nightshift.producer.cli", "reaper"]
        with process(reaper, home / "reaper.log", **urls):
            yield urls


@dataclass
class Rig:
    """The fleet over one task: jobs, one after the other, each into a folder of its own."""

    task: str
    model: str
    home: Path
    size: Size
    servers: dict[str, str]
    jobs: int = 0

    @contextmanager
    def worker(self, name: str) -> Iterator[tuple[ProcessGroup, Path]]:
        """A worker of one slot, and its log."""
        log = self.home / f"{self.task}-{name}.log"
        argv = [sys.executable, "-m", "nightshift.worker.cli", "--slots", "1"]
        run_dir = str(self.home / f"run-{self.task}-{name}")
        with process(argv, log, **self.servers, run_dir=run_dir) as group:
            yield group, log

    def run(
        self,
        group: ProcessGroup,
        log: Path,
        data: Path,
        seconds: float = WORK_SECONDS,
        limit: int | None = None,
        begun: Callable[[psycopg.Connection[Any]], object] = lambda _: None,
    ) -> tuple[float, pa.Table]:
        """Runs a job; the seconds from its first claim to its last commit, and its output by row."""
        self.jobs += 1
        output = self.home / f"out-{self.task}-{id(self)}-{self.jobs}"
        size = self.size
        spec = {
            "name": f"bench-{self.task}",
            "input": {"uri": str(data), "id": "id", "limit": limit},
            # Rows that are equal would run once here, and twice in the library.
            "task": {"kind": self.task, "text": "{{ text }}", "dedupe": False},
            "engine": {
                "backend": "transformers",
                "model": self.model,
                "device": size.device,
                "dtype": size.dtype,
                "batch_size": size.batch_size,
                "max_length": LONGEST,
                "truncate": True,
            },
            "output": {"uri": str(output)},
            "batch": {"rows": size.batch_rows},
        }
        _, span = run_job(spec, self.servers, group, log, seconds, begun)
        table = ds.dataset(output, format="parquet", exclude_invalid_files=True).to_table()
        return span, table.sort_by("row_index")


def differing(task: str, fleet: pa.Table, library: pa.Table) -> int:
    """Rows whose answers are not the same: labels, or vectors more than 0.02 apart by cosine."""
    assert fleet.column("error").null_count == len(fleet), "rows failed"
    assert fleet.column("id").to_pylist() == library.column("id").to_pylist()
    if task == "classify":
        ours, theirs = fleet.column("label").to_pylist(), library.column("answer").to_pylist()
        return sum(one != other for one, other in zip(ours, theirs, strict=True))
    one, other = (
        np.stack(column.to_numpy(zero_copy_only=False)).astype(np.float32)
        for column in (fleet.column("embedding"), library.column("answer"))
    )
    cosines = (one * other).sum(axis=1) / (
        np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    )
    return int((cosines < 0.98).sum())


@dataclass(frozen=True, slots=True)
class Turn:
    """One round over one file of rows: seconds of the fleet and of each of the library's loops; the same as
    CPU seconds of the worker and of the loops, which say more where the machine has other work; and how many
    answers are not the same.
    """

    count: int
    fleet: float
    loops: Mapping[str, float]
    fleet_cpu: float
    loops_cpu: Mapping[str, float]
    unlike: int

    @property
    def better(self) -> str:
        """The name of the library's faster loop."""
        return min(self.loops, key=self.loops.__getitem__)

    @property
    def ratio(self) -> float:
        """The fleet's speed over that of the library's faster loop."""
        return self.loops[self.better] / self.fleet

    def __str__(self) -> str:
        loops = ", ".join(f"{name} {self.count / taken:,.0f}" for name, taken in self.loops.items())
        return (
            f"fleet {self.count / self.fleet:,.0f} rows/s, {loops}: {self.ratio:.2f}; "
            f"by CPU seconds {min(self.loops_cpu.values()) / self.fleet_cpu:.2f}; "
            f"{self.unlike} of {self.count} answers differ"
        )


def turn(
    rig: Rig,
    data: Mapping[str, Path],
    number: int,
    looking: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Mapping[str, Turn]:
    """A round over each file: the fleet and the library one after the other, and in the next round the other
    way round. Their models are never loaded at once.
    """
    fleet: dict[str, tuple[float, float, pa.Table]] = {}
    loops: dict[str, dict[str, tuple[float, float]]] = {}

    def run_fleet() -> None:
        with rig.worker(f"{number}") as (group, log):
            for path in data.values():  # an engine that has seen rows of each kind is warm
                rig.run(group, log, path, START_SECONDS, limit=2 * rig.size.batch_rows)
            with looking():
                for kind, path in data.items():
                    before = sum(tree_seconds(group.pid))
                    seconds, table = rig.run(group, log, path)
                    fleet[kind] = seconds, sum(tree_seconds(group.pid)) - before, table

    def run_library() -> None:
        made = library.loops(rig.task, rig.model, rig.size)
        for kind, path in data.items():
            loops[kind] = {}
            for name, loop in made.items():
                before = time.process_time()
                seconds = library.timed(loop, rig.task, path, answers(kind))
                loops[kind][name] = seconds, time.process_time() - before
        del made
        gc.collect()
        if rig.size.device == "cuda":
            torch.cuda.empty_cache()

    def answers(kind: str) -> Path:
        return rig.home / f"library-{rig.task}-{kind}.parquet"

    for each in (run_fleet, run_library)[:: 1 if number % 2 == 0 else -1]:
        each()
    found = {}
    for kind, (seconds, cpu, table) in fleet.items():
        taken, cpus = ({name: each[at] for name, each in loops[kind].items()} for at in (0, 1))
        unlike = differing(rig.task, table, pq.read_table(answers(kind)))
        found[kind] = Turn(len(table), seconds, taken, cpu, cpus, unlike)
    return found
