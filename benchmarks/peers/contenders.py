"""The contenders that are not in the engine benchmark: the fleet as a user has it, `vllm run-batch`, Ray."""

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arranged.__main__ import pass_seconds
from benchmarks.engine import fleet, rows
from benchmarks.engine.contender import (
    ENVIRONMENT,
    START_SECONDS,
    WORK_SECONDS,
    Plan,
    Result,
    Workload,
    flags,
    process,
)
from benchmarks.engine.contenders import run_program
from benchmarks.engine.rows import Tokens

LOG_FORMAT = {
    "version": 1,
    "formatters": {"timed": {"format": "%(created)f %(message)s"}},
    "handlers": {"stream": {"class": "logging.StreamHandler", "formatter": "timed"}},
    "loggers": {"vllm": {"handlers": ["stream"], "level": "INFO"}},
}
"""Python's configuration of logs, for vLLM: the Unix time with its fraction, and the message."""

BEGIN = re.compile(r"^(\d+\.\d+) Reading batch from ", re.MULTILINE)
"""What vLLM 0.32 logs once the model is loaded, before it reads the first request."""


@dataclass(frozen=True, slots=True)
class Nightshift(fleet.Fleet):
    """The fleet with the default of `batch.arrange`; its seconds have the pass over the rows in them."""

    def run(self, plan: Plan) -> list[Result]:
        """As the fleet, and the pass of each workload, again and by itself."""
        found = super(Nightshift, self).run(plan)
        return [
            replace(result, seconds=result.seconds + _pass_seconds(plan, each))
            for each, result in zip(plan.workloads, found, strict=True)
        ]


def _pass_seconds(plan: Plan, workload: Workload) -> float:
    again = Path(plan.folder) / f"{workload.name}-again"
    return pass_seconds(fleet.spec_of(plan, workload, again))


@dataclass(frozen=True, slots=True)
class RunBatch:
    """`vllm run-batch`, a process a workload, since it loads a model for each file."""

    name: str

    def run(self, plan: Plan) -> list[Result]:
        """From the moment when the model is loaded to the last byte of the answers."""
        return [self._measure(plan, each) for each in plan.workloads]

    def _measure(self, plan: Plan, workload: Workload) -> Result:
        folder = Path(plan.folder)
        requests = folder / f"{workload.name}.jsonl"
        answers = folder / f"{workload.name}-answers.jsonl"
        log = folder / f"{workload.name}.log"
        logging = folder / "logging.json"
        logging.write_text(json.dumps(LOG_FORMAT))
        _write_requests(requests, plan.model, workload)
        argv = [sys.executable, "-m", "benchmarks.peers.run_batch"]
        argv += ["-i", str(requests), "-o", str(answers), "--model", plan.model]
        argv += flags(plan.args)
        variables = {**ENVIRONMENT, "VLLM_LOGGING_CONFIG_PATH": str(logging)}
        with process(argv, log, variables) as group:
            code = group.wait(START_SECONDS + WORK_SECONDS)
        assert code == 0, f"ended with {code}: {log.read_text()[-3000:]}"
        [began] = BEGIN.findall(log.read_text())
        usages = [
            json.loads(line)["response"]["body"]["usage"]
            for line in answers.read_text().splitlines()
        ]
        tokens = Tokens(
            tuple(usage["prompt_tokens"] for usage in usages),
            tuple(usage["completion_tokens"] for usage in usages),
        )
        return Result(answers.stat().st_mtime - float(began), tokens, {})


def _write_requests(path: Path, model: str, workload: Workload) -> None:
    asked = rows.read(Path(workload.path)).to_pylist()
    with path.open("w") as file:
        for number, row in enumerate(asked):
            body = {
                "model": model,
                "messages": [{"role": "user", "content": row["text"]}],
                "temperature": 0,
                "max_tokens": row["max_tokens"],
                "ignore_eos": True,
            }
            request = {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps({**request, "body": body}) + "\n")


@dataclass(frozen=True, slots=True)
class Ray:
    """Ray Data LLM, in the interpreter `python` that has it."""

    name: str
    python: str

    def run(self, plan: Plan) -> list[Result]:
        """One pipeline over all workloads."""
        variables = {**ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"}
        return run_program([self.python, "-m", "benchmarks.peers.ray_data"], plan, variables)
