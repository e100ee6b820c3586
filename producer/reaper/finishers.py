"""Finishes the jobs that are over beside the rounds of a reaper, several at once."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from nightshift.common.errors import Retryable, StorageUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import job_end
from nightshift.common.settings import Settings
from nightshift.common.text import kept_message
from nightshift.producer.reaper import finish

MOST_FINISHING = 4
"""Jobs whose files one reaper finishes at the same time, so that a job with a million parts does not
hold up the others. Most of that time is spent on waiting for the store."""

HOLD_SECONDS = 60.0
"""How long one reaper has a job's files to itself before it must say so again; a courtesy, not a
fence: to finish a job twice is harmless."""

LEAVE_SECONDS = 10.0
"""Time that the running finishes get together when the reaper is asked to stop."""


class Finishers:
    """The threads of one reaper that finish jobs, one a job.

    `run_duty` runs a duty and counts its failure. A job whose finish failed is taken again behind
    the jobs that nobody has tried since.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        name: str,
        run_duty: Callable[[Callable[[], object]], bool],
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._name = name
        self._run_duty = run_duty
        self._running: dict[int, threading.Thread] = {}
        self._waiting: dict[int, tuple[float, float]] = {}

    def start(self, stop: threading.Event) -> None:
        """Takes jobs in a thread of its own until `stop` is set."""
        self._taking = threading.Thread(target=self._take, args=(stop,), daemon=True)
        self._taking.start()

    def leave(self) -> None:
        """Waits for the running finishes, LEAVE_SECONDS at most. `stop` is set."""
        until = time.monotonic() + LEAVE_SECONDS
        self._taking.join(LEAVE_SECONDS)
        for thread in list(self._running.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def _take(self, stop: threading.Event) -> None:
        while not stop.wait(self._settings.dispatch_seconds):
            self._run_duty(self._finish_round)

    def _finish(self, job_id: int) -> None:
        """Finishes a job; everybody who looks at it reads that its storage is away."""
        teller = outages.Teller(f"{self._name}/{job_id}", socket.gethostname())
        try:
            finish.finish(self._ledger, job_id, self._settings.allowed_roots)
        except StorageUnavailable as error:
            now = time.monotonic()
            began, told_at = self._waiting.get(job_id, (now, now))
            if now - told_at > outages.LAPSE_SECONDS:  # another reaper finished the job meanwhile
                began = now
            self._waiting[job_id] = began, now
            wait = outages.Wait(outages.Kind.STORAGE, job_id, now - began, kept_message(str(error)))
            with suppress(Retryable), self._ledger.transaction() as connection:
                outages.tell(connection, teller, [wait])
            raise
        if self._waiting.pop(job_id, None) is not None:
            with suppress(Retryable), self._ledger.transaction() as connection:
                outages.tell(connection, teller, [])

    def _finish_round(self) -> None:
        """Takes as many jobs that are over as there is room for; one that is slow or cannot be
        finished does not stop the others.
        """
        self._running = {job: thread for job, thread in self._running.items() if thread.is_alive()}
        busy = list(self._running)
        with self._ledger.transaction() as connection:
            job_end.keep_finishing(connection, self._name, busy, HOLD_SECONDS)
            over = job_end.finishable(
                connection, self._name, HOLD_SECONDS, busy, MOST_FINISHING - len(busy)
            )
        for job_id in over:
            duty = partial(self._finish, job_id)
            # A daemon: another reaper, or the next start, takes up a finish that is cut off.
            thread = threading.Thread(target=self._run_duty, args=(duty,), daemon=True)
            thread.start()
            self._running[job_id] = thread
