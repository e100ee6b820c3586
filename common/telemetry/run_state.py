"""What running processes say of themselves in `run_dir`, for probes that must not ask Postgres.

    run_dir/worker.json      the supervisor: pid, time, slots, and how long its children may take
    run_dir/worker.lock      held while it lives: one supervisor a folder
    run_dir/children/ID.json a child of it: its state, and when its engine last moved
    run_dir/reaper.json      a reaper, with reaper.lock

Each file is replaced whole. Whoever writes one says by when it will have written the next: a file
past its `late_at` belongs to a process that stands still. Times are CLOCK_MONOTONIC, which all
processes of a machine share, nobody can set, and a suspended machine does not count. A file counts
only while the very process lives that wrote it, so what an earlier boot left fools nobody.

It imports next to nothing: a probe pays for every import each time.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.processes.table import kernel, look
from nightshift.common.telemetry.run_dir import VARIABLE, NoRunDir

WORKER, REAPER, CHILDREN = "worker", "reaper", "children"

AGAIN_SECONDS = 1.0
"""A file whose content stays the same is written again so often."""


class StateFile:
    """The file of one process: written when it says something new, and once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_suffix(".new")
        self._written_at = 0.0
        self._said: tuple[float | None, dict[str, Any]] = (None, {})
        self._unwritable = ""
        mine = look(os.getpid())
        assert mine is not None, "this process is in the process table"
        self._who = {"pid": os.getpid(), "started": mine.started, "kernel": kernel()}

    def say(self, late_at: float | None, **facts: Any) -> str | None:
        """Replaces the file; `late_at` is when a next one is overdue, None when none is promised.

        A folder that cannot be written stops no work: why comes back, once each reason.
        """
        now = time.monotonic()
        before, said = self._said
        moved = abs((late_at or 0.0) - (before or 0.0))
        if facts == said and max(moved, now - self._written_at) < AGAIN_SECONDS:
            return None
        whole = {**self._who, "at": now, "late_at": late_at, **facts}
        try:
            self._new.write_text(json.dumps(whole), encoding="utf-8")
            self._new.replace(self._path)
        except OSError as error:
            known, self._unwritable = self._unwritable, str(error)
            return self._unwritable if self._unwritable != known else None
        self._written_at, self._said, self._unwritable = now, (late_at, facts), ""
        return None


def claim(run_dir: Path, role: str) -> StateFile:
    """The state file of this process, which has the role in this folder until it ends.

    Makes the folder. BadInput when it cannot be used, or when another process has the role in it.
    """
    path = run_dir / f"{role}.json"
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never closed: the lock lasts as long as the process, and no child of it inherits it.
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BadInput(
                f"{VARIABLE}: another {role} uses {run_dir}: give each process a folder of its own"
            ) from error
        path.unlink(missing_ok=True)
        if role == WORKER:
            (run_dir / CHILDREN).mkdir(mode=0o700, exist_ok=True)
            for left in (run_dir / CHILDREN).iterdir():
                left.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{VARIABLE}: {run_dir} cannot be used: {error.strerror}") from error
    return StateFile(path)


def child_path(run_dir: Path, worker_id: str) -> Path:
    """Where a child says how it stands."""
    return run_dir / CHILDREN / f"{worker_id}.json"


def forget_child(run_dir: Path, worker_id: str) -> None:
    """Removes the file of a child that has ended."""
    with suppress(OSError):
        child_path(run_dir, worker_id).unlink(missing_ok=True)


def heard(path: Path) -> dict[str, Any] | None:
    """What the living process says that wrote this file; None when there is none.

    Raises NoRunDir when the file is there and cannot be read.
    """
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise NoRunDir(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from error
    return said if is_alive(said) else None


def is_alive(said: dict[str, Any]) -> bool:
    """Whether the very process that said this still lives."""
    if said["kernel"] != kernel():
        return False
    now = look(said["pid"])
    return now is not None and now.started == said["started"] and not now.is_over


def is_late(said: dict[str, Any], now: float) -> bool:
    """Whether a next word of this process is overdue."""
    return said["late_at"] is not None and now > said["late_at"]
