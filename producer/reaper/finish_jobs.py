"""Duty: the jobs that are over are finished, several at once."""

import socket
import threading
import time
from contextlib import suppress
from functools import partial

from nightshift.common.errors import Retryable, StorageUnavailable
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import job_end
from nightshift.common.text import kept_message
from nightshift.producer.reaper import finish
from nightshift.producer.reaper.duty import Duty, Reaper

MOST_FINISHING = 4
"""Jobs whose files one reaper finishes at the same time, so that a job with a million parts does not
hold up the others. Most of that time is spent on waiting for the store."""

HOLD_SECONDS = 60.0
"""How long one reaper has a job's files to itself before it must say so again; a courtesy, not a
fence: to finish a job twice is harmless."""

LEAVE_SECONDS = 10.0
"""Time that the running finishes get together when the reaper is asked to stop."""


def duty(reaper: Reaper) -> Duty:
    """As often as rounds are made, beside them."""
    finishers = Finishers(reaper)
    reaper.at_end.callback(finishers.leave)
    return Duty("finish_round", reaper.settings.dispatch_seconds, finishers.turn, threads=1)


class Finishers:
    """The threads of one reaper that finish jobs, one a job.

    A job whose finish failed is taken again behind the jobs that nobody has tried since.
    """

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._ledger = reaper.ledger
        self._running: dict[int, threading.Thread] = {}
        self._waiting: dict[int, tuple[float, float]] = {}

    def leave(self) -> None:
        """Waits for the running finishes, LEAVE_SECONDS at most."""
        until = time.monotonic() + LEAVE_SECONDS
        for thread in list(self._running.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def _finish(self, job_id: int) -> None:
        """Finishes a job; everybody who looks at it reads that its storage is away."""
        teller = outages.Teller(f"{self._reaper.name}/{job_id}", socket.gethostname())
        try:
            finish.finish(self._ledger, job_id, self._reaper.settings.allowed_roots)
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

    def turn(self) -> None:
        """Takes as many jobs that are over as there is room for; one that is slow or cannot be
        finished does not stop the others.
        """
        self._running = {job: thread for job, thread in self._running.items() if thread.is_alive()}
        busy = list(self._running)
        with self._ledger.transaction() as connection:
            job_end.keep_finishing(connection, self._reaper.name, busy, HOLD_SECONDS)
            over = job_end.finishable(
                connection, self._reaper.name, HOLD_SECONDS, busy, MOST_FINISHING - len(busy)
            )
        for job_id in over:
            # A daemon: another reaper, or the next start, takes up a finish that is cut off.
            thread = threading.Thread(
                target=self._reaper.attempt,
                args=("finish", partial(self._finish, job_id)),
                daemon=True,
            )
            thread.start()
            self._running[job_id] = thread
