"""The steps of a run, from its command to its end: each process appends a line to the file of
`--profile` when a step is over. Nothing heavy is imported here: vLLM's processes import this module.
"""

import json
import os
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from nightshift.common.errors import BadInput
from nightshift.common.processes import process_table
from nightshift.common.system_errors import told


class Step(Enum):
    """What is reached when a step is over, and what the step mostly is."""

    BEGUN = "command begun", ""
    READ = "spec read", "imports"
    SERVERS = "servers answer", "Postgres, Redis, tables"
    SUBMITTED = "job submitted", "planning"
    WORKER = "worker up", "imports"
    CHILD = "child begun", "plan of the pool"
    PROCESS = "engine process begun", "imports"
    LOAD = "model begun", "imports"
    WEIGHTS = "weights read", "weights"
    WARM_UP = "engine warmed up", "cache, compilation, warm-up"
    READY = "engine ready", "the rest of loading"
    FIRST_ROW = "first row answered", "claim, prompt, answer"
    OVER = "job over", "rows"
    CLOSED = "engine closed", "leaving"
    LEFT = "all ended", "leaving"


@dataclass(frozen=True, slots=True)
class Reached:
    """A step of one process; `at` is the time of day in seconds. `name` is that of an engine's process."""

    step: Step
    at: float
    name: str = ""
    supervisor: str | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepFile:
    """The file of `--profile`, or none, and who writes to the file."""

    path: Path | None
    names: dict[str, str] = field(default_factory=dict)

    def note(self, step: Step, *, at: float | None = None, name: str = "") -> None:
        """Appends that a step is over, now or `at` a time of day."""
        if self.path is None:
            return
        line = {**self.names, "step": step.name, "at": at or time.time(), "name": name}
        try:
            append(self.path, json.dumps(line) + "\n")
        except OSError:
            return  # a full disk is no reason to stop working


def append(path: Path, text: str) -> None:
    """Appends in one write, so that lines of several processes never mix."""
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def checked(path: Path) -> Path:
    """The absolute path of a file that lines can be appended to; BadInput where they cannot."""
    try:
        append(path, "")
    except OSError as error:
        raise BadInput(f"the profile cannot be written to {path}: {told(error)}") from error
    return path.absolute()


def process_began() -> float:
    """The time of day at which this process began, to 10 ms."""
    process = process_table.look("self")
    assert process is not None
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up + process.started / os.sysconf("SC_CLK_TCK")
