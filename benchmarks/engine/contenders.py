"""The contenders as the benchmark drives them: each in processes of its own, one at a time."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import naive_queue
from benchmarks.engine.contender import (
    ENVIRONMENT,
    START_SECONDS,
    WORK_SECONDS,
    Plan,
    Result,
    Workload,
    process,
    wait_for,
)
from benchmarks.engine.rows import Tokens


@dataclass(frozen=True, slots=True)
class Raw:
    """VLLM alone; `kind` is `generate` (a) or `async` (b)."""

    name: str
    kind: str

    def run(self, plan: Plan) -> list[Result]:
        """Starts it, waits for its results, ends it."""
        return run_program([sys.executable, "-m", "benchmarks.engine.raw", self.kind], plan)


def run_program(
    argv: list[str], plan: Plan, variables: Mapping[str, str] = ENVIRONMENT
) -> list[Result]:
    """The results of a program that gets the plan, leaves `results.json` in its folder, and waits."""
    log = Path(plan.folder) / "log"
    results = Path(plan.folder) / "results.json"
    seconds = START_SECONDS + WORK_SECONDS * len(plan.workloads)
    with process([*argv, plan.argument()], log, variables) as group:
        wait_for(results.exists, seconds, group, log)
        return [Result.read(each) for each in json.loads(results.read_text())]


@dataclass(frozen=True, slots=True)
class Naive:
    """One Celery task a batch, one at a time."""

    name: str
    broker_url: str

    def run(self, plan: Plan) -> list[Result]:
        """Starts its worker, sends each workload's tasks, ends it."""
        folder = Path(plan.folder)
        log = folder / "log"
        argv = [sys.executable, "-m", "benchmarks.engine.naive", plan.argument(), self.broker_url]
        app = naive_queue.make_app(self.broker_url)
        with process(argv, log) as group:
            wait_for((folder / naive_queue.WARM).exists, START_SECONDS, group, log)
            engine = json.loads((folder / naive_queue.ENGINE).read_text())
            return [self._measure(app, each, folder, engine, group) for each in plan.workloads]

    def _measure(
        self, app: Any, workload: Workload, folder: Path, engine: dict[str, Any], group: Any
    ) -> Result:
        file = folder / naive_queue.DONE
        file.write_text("")
        count = naive_queue.send(app, workload)
        wait_for(lambda: file.read_text().count("\n") == count, WORK_SECONDS, group, folder / "log")
        done = [json.loads(line) for line in file.read_text().splitlines()]
        done.sort(key=lambda each: each["first"])
        return Result(
            max(each["ended"] for each in done) - min(each["began"] for each in done),
            Tokens(
                tuple(count for each in done for count in each["prompt"]),
                tuple(count for each in done for count in each["output"]),
            ),
            engine,
        )
