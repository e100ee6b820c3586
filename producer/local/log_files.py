"""The logs of `nightshift run`: what its reaper and its worker write into the home folder."""

import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from nightshift.common.errors import BadInput

NAMES = ("reaper", "worker")

FOLLOW_SECONDS = 0.5
"""Pause between two looks for new lines."""


def lines(home: Path, job_id: int | None, count: int, *, follow: bool) -> Iterator[str]:
    """The last `count` lines of both files, all with 0, of one job if one is named; then, with
    `follow`, new ones as they come. BadInput where there are no files.
    """
    files = {name: home / f"{name}.log" for name in NAMES}
    found = {name: path for name, path in files.items() if path.is_file()}
    if not found:
        raise BadInput(f"there are no logs in {home}: no `nightshift run` was started with it")
    ends = {}
    for name, path in found.items():
        with path.open(encoding="utf-8", errors="replace") as file:
            kept = (line for line in file if _is_of(line, job_id))
            for line in deque(kept, maxlen=count or None):
                yield _named(name, line)
            ends[name] = file.tell()
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for name, path in found.items():
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(ends[name])
                for line in file:
                    if _is_of(line, job_id):
                        yield _named(name, line)
                ends[name] = file.tell()


def _is_of(line: str, job_id: int | None) -> bool:
    """Whether a line names the job, in either format of log lines."""
    return job_id is None or re.search(rf'\bjob_id("?: |=){job_id}\b', line) is not None


def _named(name: str, line: str) -> str:
    return f"{name:<7} {line.rstrip()}"
