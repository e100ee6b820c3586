"""A duty of a reaper, and what the duties of one reaper share.

Each duty is short transactions that are harmless when they run twice; messages and files come after
COMMIT. A duty that fails is logged, counted, and tried again at its next turn.
"""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from nightshift.common.errors import NightshiftError
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.telemetry.run_state import StateFile
from nightshift.producer.reaper.metrics import Rounds
from nightshift.producer.reaper.silence import Silence
from nightshift.producer.reaper.watchdog import Watchdog

log = structlog.get_logger(__name__)


RETRY_SECONDS = 5.0
"""Pause after a turn that failed, of a duty whose own pause is longer."""


@dataclass(frozen=True, slots=True)
class Duty:
    """`run` is one turn; True from it says that there is more to do at once. `pause` is the time in seconds
    between two turns.

    A duty without `threads` takes its turn in the round, behind the duties before it in the table. A
    duty whose turns may take long has threads of its own, and `leave_seconds` for the turns that are under
    way when the reaper is asked to stop: what is cut off is taken up by another reaper, or by the next
    start.
    """

    name: str
    pause: float
    run: Callable[[], bool | None]
    threads: int = 0
    leave_seconds: float = 5.0


@dataclass(slots=True)
class Reaper:
    """What the duties of one reaper share, for many threads.

    `state` is the file that the watchdog writes; `delete` deletes a closed job with its output. `at_end` runs
    what duties leave behind. `pressed` says that a queue ran low since the last round: the next round should come
    soon.
    """

    ledger: Ledger
    settings: Settings
    rounds: Rounds
    delete: Callable[[Job], object]
    state: StateFile | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    watchdog: Watchdog = field(init=False)
    silence: Silence = field(init=False)
    name: str = field(default_factory=lambda: f"r-{uuid.uuid4().hex[:8]}")
    at_end: ExitStack = field(default_factory=ExitStack)
    pressed: bool = False

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.settings, self.state)
        self.silence = Silence(self.settings)

    def attempt(self, name: str, work: Callable[[], bool | None]) -> tuple[bool, bool]:
        """Does a turn of the duty of this name: whether it succeeded, and whether there is more to do."""
        try:
            return True, bool(work())
        except NightshiftError as error:
            log.warning("duty_failed", duty=name, error=str(error))
        except Exception:
            log.exception("duty_crashed", duty=name)
        self.rounds.duty_failed(name)
        return False, False


class Round:
    """The duties without threads of their own, one after the other in the order of the table."""

    def __init__(self, reaper: Reaper, duties: list[Duty]) -> None:
        self._reaper = reaper
        self._duties = duties
        self._next_turn: dict[str, float] = {}

    def turn(self) -> None:
        """Every duty whose pause is over, once, and again while it has more to do."""
        reaper = self._reaper
        for duty in self._duties:
            if time.monotonic() < self._next_turn.get(duty.name, 0.0):
                continue
            done, more = False, True
            while more and not reaper.stop.is_set():
                reaper.watchdog.alive()
                done, more = reaper.attempt(duty.name, duty.run)
                reaper.silence.heard(worked=done)
            if done:
                self._next_turn[duty.name] = time.monotonic() + duty.pause


class Beside:
    """A duty with threads of its own."""

    def __init__(self, reaper: Reaper, duty: Duty) -> None:
        self._reaper = reaper
        self._duty = duty
        self._pausing = threading.Lock()
        # Daemons: a turn that is cut off stops no process from ending.
        self._threads = [
            threading.Thread(
                target=self._work, args=(number == 0,), name=f"{duty.name}-{number}", daemon=True
            )
            for number in range(duty.threads)
        ]

    def start(self) -> None:
        """Takes turns until the reaper is asked to stop."""
        for thread in self._threads:
            thread.start()

    def leave(self, asked_at: float) -> None:
        """Waits for the turns that were under way when the reaper was asked to stop, in monotonic seconds."""
        for thread in self._threads:
            thread.join(max(0.0, asked_at + self._duty.leave_seconds - time.monotonic()))

    def _work(self, is_first: bool) -> None:
        stop, pause, more = self._reaper.stop, 0.0 if is_first else self._duty.pause, False
        while not stop.is_set():
            if not more:
                # One at a time: together the threads ask no more often than one would.
                with self._pausing:
                    if stop.wait(pause):
                        return
            done, more = self._reaper.attempt(self._duty.name, self._duty.run)
            pause = self._duty.pause if done else min(self._duty.pause, RETRY_SECONDS)
