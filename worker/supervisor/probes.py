"""What a container's probes ask: `nightshift-worker started`, `alive` and `drain`.

They read `run_dir` and nothing else, so no outage of Postgres or Redis makes one fail, and import
next to nothing, since they run every few seconds. Exit codes: 0 yes, 1 no, 2 cannot be asked; one
sentence says why.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nightshift.common.exit_codes import ExitCode
from nightshift.common.telemetry import run_state
from nightshift.common.text import counted, plural

YES, NO = ExitCode.DONE, ExitCode.FINDINGS

LOOK_SECONDS = 0.2
"""Pause between two looks of a drain."""

WARM = ("ready", "draining", "closing")

Answer = tuple[int, str]
State = dict[str, Any]


def answer(command: str) -> int:
    """Runs a probe by its name and says its sentence; returns the exit code."""
    try:
        code, sentence = answer_of(command, run_state.usable())
    except run_state.NoRunDir as error:
        code, sentence = ExitCode.NO_RUN_DIR, str(error)
    print(f"nightshift-worker {command}: {sentence}", file=sys.stderr if code else sys.stdout)
    return code


def answer_of(command: str, run_dir: Path) -> Answer:
    """The exit code of a probe, and its sentence. Where no worker runs, nothing is to be drained."""
    supervisor = run_state.read_state(run_dir / f"{run_state.WORKER}.json")
    if supervisor is None:
        no_worker = f"no nightshift-worker runs with NIGHTSHIFT_RUN_DIR={run_dir}"
        return YES if command == "drain" else NO, no_worker
    return PROBES[command](run_dir, supervisor)


def started(run_dir: Path, supervisor: State) -> Answer:
    """Yes once every slot has a warm engine or nothing to load."""
    if not supervisor["has_looked"]:
        return NO, "the supervisor has not looked for work yet"
    for slot, child in _slots(run_dir, supervisor):
        state = "starting" if child is None else child["state"]
        if slot["child"] is not None and state not in WARM:
            return NO, f"slot {slot['slot']}: {slot['child']} is {state}"
    return (
        YES,
        f"{counted(len(supervisor['slots']), 'slot')} {plural(len(supervisor['slots']), 'has', 'have')} a warm engine or nothing to load",
    )


def alive(run_dir: Path, supervisor: State) -> Answer:
    """No when the supervisor stands still, or could not end a child that hangs or stalls."""
    now = time.monotonic()
    if run_state.is_late(supervisor, now):
        return NO, f"the supervisor has stood still for {now - supervisor['at']:.0f} s"
    for slot, child in _slots(run_dir, supervisor):
        why = _why_stuck(slot, child, now)
        if why is not None:
            return NO, f"slot {slot['slot']}: {slot['child']} {why}"
    return (
        YES,
        f"the supervisor looks, and no child of {counted(len(supervisor['slots']), 'slot')} is stuck",
    )


def drain(run_dir: Path, supervisor: State) -> Answer:
    """Asks the supervisor to drain and waits until it has no child."""
    until = time.monotonic() + supervisor["leave_seconds"]
    try:
        os.kill(supervisor["pid"], signal.SIGTERM)
    except ProcessLookupError:
        return YES, "the supervisor has just left"
    except PermissionError:
        return NO, f"the supervisor, pid {supervisor['pid']}, belongs to another user"
    while run_state.is_alive(supervisor):
        now = run_state.read_state(run_dir / f"{run_state.WORKER}.json")
        if now is not None and now["draining"] and not _children(now):
            return YES, "no child is left"
        if time.monotonic() > until:
            left = ", ".join(_children(now or supervisor)) or "the supervisor"
            return NO, f"{left} still there after {supervisor['leave_seconds']:.0f} s"
        time.sleep(LOOK_SECONDS)
    return YES, "the supervisor has left"


PROBES: dict[str, Callable[[Path, State], Answer]] = {
    "started": started,
    "alive": alive,
    "drain": drain,
}


def _slots(run_dir: Path, supervisor: State) -> Iterator[tuple[State, State | None]]:
    """Each slot, and the state that its child wrote; None before the child has written."""
    for slot in supervisor["slots"]:
        child = slot["child"]
        path = None if child is None else run_state.child_path(run_dir, child)
        yield slot, None if path is None else run_state.read_state(path)


def _why_stuck(slot: State, child: State | None, now: float) -> str | None:
    """Why a child counts as stuck although its supervisor goes on."""
    if slot["overdue_at"] is not None and now > slot["overdue_at"]:
        return f"could not be ended for {now - slot['since']:.0f} s"
    if child is None or slot["state"] == "leaving":
        return None
    if run_state.is_late(child, now):
        return f"has said nothing for {now - child['at']:.0f} s"
    if child["stalled_seconds"] > child["stall_limit_seconds"]:
        return f"has an engine that has not moved for {child['stalled_seconds']:.0f} s"
    return None


def _children(supervisor: State) -> list[str]:
    return [slot["child"] for slot in supervisor["slots"] if slot["child"] is not None]
