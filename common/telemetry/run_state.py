"""States that running processes write in `run_dir`, for probes that must not ask Postgres.

    run_dir/worker.json      the supervisor: pid, time, slots, and how long its children may take
    run_dir/worker.lock      held while it lives: one supervisor a folder
    run_dir/children/ID.json a child of it: its state, and when its engine last moved
    run_dir/reaper.json      a reaper, with reaper.lock

Each file is replaced whole, and names the time by which the process will have written the next: a
file past its `late_at` belongs to a process that stands still. Times are CLOCK_MONOTONIC, which all
processes of a machine share, that nobody can set, and that stops while the machine is suspended. A
file counts only while the process lives that wrote it: files of an earlier boot are ignored.

This module imports little: a probe runs every ten seconds and pays for every import.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.processes.process_table import kernel, look
from nightshift.common.system_errors import told

VARIABLE = "NIGHTSHIFT_RUN_DIR"
"""The one setting that is read apart from the others: a probe runs every ten seconds, and pydantic
alone would cost it half a second of CPU each time."""

WORKER, REAPER, CHILDREN = "worker", "reaper", "children"

AGAIN_SECONDS = 1.0
"""A file whose content stays the same is written again so often."""


class NoRunDir(Exception):
    """There is no folder to look into."""


def given() -> Path | None:
    """What Settings.run_dir is in this environment; None when it is not set."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def usable() -> Path:
    """The folder that a probe looks into; NoRunDir says in a sentence why there is none."""
    folder = given()
    if folder is None:
        raise NoRunDir(f"{VARIABLE} is not set: there is nothing to look at")
    try:
        os.listdir(folder)  # noqa: PTH208 - the answer does not matter, being allowed to ask does
    except OSError as error:
        raise NoRunDir(f"{VARIABLE}: {folder} cannot be read: {told(error)}") from error
    return folder


class StateFile:
    """The file of one process: written when its state is new, and once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_suffix(".new")
        self._written_at = 0.0
        self._written: tuple[float | None, dict[str, Any]] = (None, {})
        self._unwritable = ""
        own = look(os.getpid())
        assert own is not None, "this process is in the process table"
        self._who = {"pid": os.getpid(), "started": own.started, "kernel": kernel()}

    def write(self, late_at: float | None, **facts: Any) -> str | None:
        """Replaces the file; `late_at` is when a next one is overdue, None when none is promised.

        A folder that cannot be written stops no work: the reason is returned, once for each reason.
        """
        now = time.monotonic()
        before, written = self._written
        moved = abs((late_at or 0.0) - (before or 0.0))
        if facts == written and max(moved, now - self._written_at) < AGAIN_SECONDS:
            return None
        whole = {**self._who, "at": now, "late_at": late_at, **facts}
        try:
            self._new.write_text(json.dumps(whole), encoding="utf-8")
            self._new.replace(self._path)
        except OSError as error:
            known, self._unwritable = self._unwritable, told(error)
            return self._unwritable if self._unwritable != known else None
        self._written_at, self._written, self._unwritable = now, (late_at, facts), ""
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
        raise BadInput(f"{VARIABLE}: {run_dir} cannot be used: {told(error)}") from error
    return StateFile(path)


def child_path(run_dir: Path, worker_id: str) -> Path:
    """Where a child writes its state."""
    return run_dir / CHILDREN / f"{worker_id}.json"


def forget_child(run_dir: Path, worker_id: str) -> None:
    """Removes the file of a child that has ended."""
    with suppress(OSError):
        child_path(run_dir, worker_id).unlink(missing_ok=True)


def read_state(path: Path) -> dict[str, Any] | None:
    """The state that a living process wrote in this file; None when there is none.

    Raises NoRunDir when the file is there and cannot be read.
    """
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise NoRunDir(f"{VARIABLE}: {path} cannot be read: {told(error)}") from error
    return state if is_alive(state) else None


def is_alive(state: dict[str, Any]) -> bool:
    """Whether the very process that wrote this state still lives."""
    if state["kernel"] != kernel():
        return False
    now = look(state["pid"])
    return now is not None and now.started == state["started"] and not now.is_over


def is_late(state: dict[str, Any], now: float) -> bool:
    """Whether the next state of this process is overdue."""
    return state["late_at"] is not None and now > state["late_at"]
