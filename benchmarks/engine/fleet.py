"""(d) the fleet: a real reaper and `nightshift-worker` on the ledger, the broker and the files."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import yaml

from benchmarks.engine.contender import (
    START_SECONDS,
    WORK_SECONDS,
    Plan,
    Result,
    Workload,
    process,
    wait_for,
)
from benchmarks.engine.rows import MOST_TOKENS, Tokens
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import child_environment, load_settings

SPAN = """
    SELECT extract(epoch FROM max(ended_at) - min(claimed_at))::float FROM attempts
    WHERE job_id = %s
"""
"""From the first claim to the last commit, by the ledger's own clock."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A reaper and a worker of one slot."""

    name: str
    database_url: str
    broker_url: str

    def run(self, plan: Plan) -> list[Result]:
        """Starts both, warms the engine with a job of its own, runs a job a workload."""
        folder = Path(plan.folder)
        log = folder / "worker.log"
        reaper = [sys.executable, "-m", "nightshift.producer.cli", "reaper"]
        worker = [sys.executable, "-m", "nightshift.worker.cli"]
        with (
            process(reaper, folder / "reaper.log", **self._servers),
            process(worker, log, **self._servers, log_format="json") as group,
        ):
            self._job(plan, plan.warm, group, log, START_SECONDS)
            engine = _engine(log)
            return [
                self._job(plan, each, group, log, WORK_SECONDS, engine) for each in plan.workloads
            ]

    @property
    def _servers(self) -> dict[str, str]:
        return {"database_url": self.database_url, "broker_url": self.broker_url}

    def _job(
        self,
        plan: Plan,
        workload: Workload,
        group: ProcessGroup,
        log: Path,
        seconds: float,
        engine: dict[str, Any] | None = None,
    ) -> Result:
        output = Path(plan.folder) / workload.name
        spec = spec_of(plan, workload, output)
        _, span = run_job(spec, self._servers, group, log, seconds)
        return Result(span, _tokens(output), engine or {})


def run_job(
    spec: dict[str, Any],
    servers: dict[str, str],
    group: ProcessGroup,
    log: Path,
    seconds: float,
    begun: Callable[[psycopg.Connection[Any]], object] = lambda _: None,
) -> tuple[int, float]:
    """Submits a job, and waits for its end for so many seconds at most; its number, and the seconds from
    its first claim to its last commit. `begun` is called while the job runs.
    """
    file = Path(spec["output"]["uri"]).with_suffix(".yaml")
    file.write_text(yaml.safe_dump(spec))
    subprocess.run(
        [sys.executable, "-m", "nightshift.producer.cli", "submit", str(file)],
        env=child_environment(load_settings(**servers)),
        check=True,
        timeout=60,
        capture_output=True,
    )
    with psycopg.connect(servers["database_url"], autocommit=True) as connection:
        begun(connection)

        def over() -> tuple[int, str] | None:
            question = "SELECT id, state FROM jobs ORDER BY id DESC LIMIT 1"
            row = connection.execute(question).fetchone()
            return row if row and row[1] != "running" else None

        job_id, state = wait_for(over, seconds, group, log)
        assert state == "completed", f"the job is {state}"
        ((span,),) = connection.execute(SPAN, (job_id,)).fetchall()
    return job_id, span


def spec_of(plan: Plan, workload: Workload, output: Path) -> dict[str, Any]:
    """The job of one workload."""
    return {
        "name": f"bench-{workload.name}",
        "input": {"uri": workload.path},
        "task": {
            "kind": "generate",
            "prompt": "{{ text }}",
            "sampling": {
                "temperature": 0,
                "ignore_eos": True,
                "max_tokens": MOST_TOKENS,
                "max_tokens_column": "max_tokens",
            },
        },
        "engine": {"backend": "vllm", "model": plan.model, "args": plan.args},
        "output": {"uri": str(output)},
        "batch": {"rows": workload.batch},
    }


def _tokens(output: Path) -> Tokens:
    columns = ["row_index", "prompt_tokens", "output_tokens", "error"]
    rows = ds.dataset(output, format="parquet").to_table(columns=columns).sort_by("row_index")
    assert rows.column("error").null_count == len(rows), "rows failed"
    assert rows.column("row_index").to_pylist() == list(range(len(rows)))
    return Tokens(
        tuple(rows.column("prompt_tokens").to_pylist()),
        tuple(rows.column("output_tokens").to_pylist()),
    )


def _engine(log: Path) -> dict[str, Any]:
    """The engine's configuration, from the worker's log."""
    for line in log.read_text().splitlines():
        # A warning may quote the line of code that writes it.
        if line.startswith("{") and '"vllm_started"' in line:
            fields: dict[str, Any] = json.loads(line)
            return {
                name: value
                for name, value in fields.items()
                if name not in ("event", "level", "timestamp", "worker_id")
            }
    raise RuntimeError("the worker's log has no line with the engine's configuration")
