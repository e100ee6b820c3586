"""What the contenders share: engine arguments, workloads, results, and the processes of one."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from benchmarks.engine.rows import Tokens
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import child_environment, load_settings

ENGINE_ARGS: dict[str, Any] = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 4096,  # vLLM's own default depends on the caller
    "max_model_len": 1024,
    "kv_cache_memory_bytes": 2**30,
    "enforce_eager": True,
    "enable_prefix_caching": False,  # a second round over the same rows must cost the same
    "disable_log_stats": True,
}

ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1"}

START_SECONDS = 180.0
WORK_SECONDS = 600.0
"""Longest time of an engine's start with its warm-up, and of one workload."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows in a Parquet file, in batches of so many where the contender has batches."""

    path: str
    rows: int
    batch: int

    @property
    def name(self) -> str:
        """For the names of files and jobs."""
        return f"{Path(self.path).stem}-{self.batch}"


@dataclass(frozen=True, slots=True)
class Result:
    """One workload by one contender; `engine` is what its vLLM was really configured as."""

    seconds: float
    tokens: Tokens
    engine: dict[str, Any]

    @classmethod
    def read(cls, data: dict[str, Any]) -> Self:
        """From JSON."""
        tokens = Tokens(tuple(data["tokens"]["prompt"]), tuple(data["tokens"]["output"]))
        return cls(data["seconds"], tokens, data["engine"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What one contender does in one start: warm up, then each workload in turn."""

    model: str
    folder: str
    warm: Workload
    workloads: tuple[Workload, ...]
    args: dict[str, Any] = field(default_factory=lambda: ENGINE_ARGS)

    def argument(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """From a command line."""
        data = json.loads(argument)
        workloads = tuple(Workload(**each) for each in data["workloads"])
        warm = Workload(**data["warm"])
        return cls(data["model"], data["folder"], warm, workloads, data["args"])


def flags(args: dict[str, Any]) -> list[str]:
    """Engine arguments as the command line of vLLM has them."""
    found = []
    for name, value in args.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            found += [flag, f"{value}"]
    return found


class Contender(Protocol):
    """One way to bring rows through an engine."""

    @property
    def name(self) -> str:
        """Its letter."""

    def run(self, plan: Plan) -> list[Result]:
        """One start; when it returns, its engine is gone."""


@contextmanager
def process(
    argv: list[str], log: Path, variables: Mapping[str, str] = ENVIRONMENT, /, **settings: str
) -> Iterator[ProcessGroup]:
    """A process and all that it starts; afterwards none of them is left."""
    environment = child_environment(load_settings(**settings), **variables)
    with log.open("ab") as output:
        group = ProcessGroup.start(argv, env=environment, stdout=output, stderr=output)
    try:
        yield group
    finally:
        family = psutil.Process(group.pid).children(recursive=True) if group.poll() is None else []
        group.stop(30)
        _, left = psutil.wait_procs(family, timeout=30)
        assert not left, f"still there after {argv}: {left}"


def wait_for(found: Any, seconds: float, alive: ProcessGroup, log: Path) -> Any:
    """Waits until `found()` is true and returns it; RuntimeError when the process ends before."""

    def check() -> Any:
        if alive.poll() is not None:
            raise RuntimeError(f"ended with {alive.poll()}: {log.read_text()[-3000:]}")
        return found()

    return Retrying(
        retry=retry_if_result(lambda value: not value),
        wait=wait_fixed(0.25),
        stop=stop_after_delay(seconds),
    )(check)
