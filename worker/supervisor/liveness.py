"""Liveness: what a supervisor and its children write of themselves into `run_dir`.

Each file says by when its process writes again, so the limits of `nightshift-worker alive` are set
here, by the processes that know what they wait for. A supervisor ends a child that hangs or stalls.
A limit is passed only when the supervisor could not do that, or stands still itself: each limit is
at least twice what the step should have taken, its own waits included.
"""

import time
from collections.abc import Sequence

import structlog

from nightshift.common.processes.process_group import EMPTY_SECONDS
from nightshift.common.settings import Settings
from nightshift.common.telemetry import run_state
from nightshift.worker.supervisor.children import ChildConfig, Slot

log = structlog.get_logger(__name__)

HUNG_LEASES = 4
LEAST_HUNG_SECONDS = 15.0
"""A child that has not beaten for so many lease times, and for so long, hangs: a call that keeps
Python's lock stops its heartbeat as well, and nothing inside it could end it.
"""

QUICK_ANSWER_SECONDS = 5.0
"""Longest wait of a supervisor for one answer of Postgres."""

STEP_SECONDS = 5.0
"""What a step of the supervisor takes beyond three answers of Postgres: a new connection."""

STEPS = 3
"""The supervisor stands still when one step of it takes longer than so many should."""

LAST_COMMITS_SECONDS = 5.0
"""Time that batches whose rows are all finished get to commit after the engine died."""

FACTOR = 2
"""A child that its supervisor should have ended is given as long again."""


def hung_seconds(settings: Settings) -> float:
    """A child silent for so long hangs, and its supervisor ends it."""
    return max(HUNG_LEASES * settings.lease_seconds, LEAST_HUNG_SECONDS)


class SupervisorLiveness:
    """The file of a supervisor; without a `run_dir` nothing is written.

    Raises BadInput when the folder cannot be used, or another supervisor has it.
    """

    def __init__(self, settings: Settings) -> None:
        self._run_dir = settings.run_dir
        self._file = (
            None if self._run_dir is None else run_state.claim(self._run_dir, run_state.WORKER)
        )
        answer = min(settings.answer_seconds, QUICK_ANSWER_SECONDS)
        self._step_seconds = 3 * answer + STEP_SECONDS
        self._leave_seconds = settings.leave_seconds
        self._since: dict[int, tuple[tuple[str, str | None], float]] = {}
        self._killed_at: dict[str, float] = {}
        self._state: dict[str, object] = {
            "slots": [],
            "has_looked": False,
            "draining": False,
            "leave_seconds": self._leave_seconds,
        }
        self._write()

    def round_over(self) -> None:
        """A round of the supervisor is over, with or without an error."""
        self._state["has_looked"] = True
        self._write()

    def step(self, slots: Sequence[Slot], *, draining: bool = False) -> None:
        """The supervisor goes on; these are its slots. A slot that is lost is no reason to end the
        children of the others, and is one where no other slot is left.
        """
        all_lost = all(slot.lost for slot in slots)
        shown = [self._facts(slot) for slot in slots if all_lost or not slot.lost]
        self._state |= {"slots": shown, "draining": draining}
        self._write()

    def killing(self, child: ChildConfig) -> None:
        """A child's process group is being killed, which may take the kernel some time."""
        self._killed_at.setdefault(child.id, time.monotonic())
        self._write(EMPTY_SECONDS)

    def child_ended(self, child: ChildConfig) -> None:
        """A child is gone, and its file goes too."""
        self._killed_at.pop(child.id, None)
        if self._run_dir is not None:
            run_state.forget_child(self._run_dir, child.id)

    def _facts(self, slot: Slot) -> dict[str, object]:
        child = None if slot.config is None else slot.config.id
        leaving = slot.leaving_since is not None
        state = "free" if child is None else "leaving" if leaving else "running"
        before, since = self._since.get(slot.number, (None, 0.0))
        if before != (state, child):
            since = time.monotonic()
            self._since[slot.number] = ((state, child), since)
        return {
            "slot": slot.number,
            "state": state,
            "since": since,
            "child": child,
            "pid": None if slot.group is None else slot.group.pid,
            "engine_key": slot.next_engine_key or (slot.config and slot.config.engine_key),
            "overdue_at": self._overdue_at(slot),
        }

    def _overdue_at(self, slot: Slot) -> float | None:
        """When a child that was asked to leave, or was killed, has stayed for far too long."""
        ends = []
        if slot.leaving_since is not None:
            ends.append(slot.leaving_since + FACTOR * (self._leave_seconds + EMPTY_SECONDS))
        if slot.config is not None and slot.config.id in self._killed_at:
            ends.append(self._killed_at[slot.config.id] + FACTOR * EMPTY_SECONDS)
        return min(ends, default=None)

    def _write(self, seconds: float = 0.0) -> None:
        late_at = time.monotonic() + STEPS * (self._step_seconds + seconds)
        _write(self._file, late_at, **self._state)


class ChildLiveness:
    """The file of a child; without a `run_dir` nothing is written.

    A child that loads names no time of its next write: a library may keep Python's lock for as long
    as a model takes. Neither does a child that closes: its supervisor limits the time of leaving.
    """

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self._file = None
        if settings.run_dir is not None:
            self._file = run_state.StateFile(run_state.child_path(settings.run_dir, worker_id))
        self._silent_seconds = FACTOR * (hung_seconds(settings) + EMPTY_SECONDS)
        two_beats = 2 * settings.heartbeat_seconds
        self._stall_seconds = FACTOR * (
            settings.engine_stall_seconds + two_beats + LAST_COMMITS_SECONDS + EMPTY_SECONDS
        )

    def write(self, state: str, stalled_seconds: float = 0.0) -> None:
        """The child goes on; `stalled_seconds` is for how long a busy engine has not moved."""
        promises = state not in ("loading", "closing")
        _write(
            self._file,
            time.monotonic() + self._silent_seconds if promises else None,
            state=state,
            stalled_seconds=stalled_seconds,
            stall_limit_seconds=self._stall_seconds,
        )


def _write(file: run_state.StateFile | None, late_at: float | None, **facts: object) -> None:
    error = None if file is None else file.write(late_at, **facts)
    if error is not None:
        log.warning("run_dir_not_written", error=error)
