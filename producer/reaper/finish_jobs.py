"""Duty: the jobs that are over are finished, several at once, each by one reaper."""

import socket
import time
from contextlib import suppress

from nightshift.common.errors import Retryable, StorageUnavailable
from nightshift.common.ledger import holds
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import job_end
from nightshift.common.text import kept_message
from nightshift.producer.reaper import finish
from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.reaper.renewed_hold import renewed

MOST_FINISHING = 4
"""Jobs whose files one reaper finishes at the same time, so that a job with a million parts does not
hold up the others. Most of that time is spent on waiting for the store."""

REST_SECONDS = 1.0
"""How long a job whose finish failed is left alone by every reaper."""

LEAVE_SECONDS = 10.0
"""Time that the running finishes get when the reaper is asked to stop."""


def duty(reaper: Reaper) -> Duty:
    """As often as rounds are made, beside them."""
    turn = Finish(reaper)
    pause = reaper.settings.dispatch_seconds
    return Duty("finish", pause, turn, threads=MOST_FINISHING, leave_seconds=LEAVE_SECONDS)


class Finish:
    """A turn finishes one job. A job whose finish failed is taken again behind the jobs that nobody has
    tried since.
    """

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._waiting: dict[str, tuple[float, float]] = {}

    def __call__(self) -> bool:
        """Finishes the job that is next; False where there is none, or where its end has to wait."""
        ledger = self._reaper.ledger
        with ledger.transaction() as connection:
            hold = job_end.take_finishable(connection, self._reaper.name)
        if hold is None:
            return False
        waits, rest_seconds = True, REST_SECONDS
        try:
            with renewed(ledger, hold):
                self._finish(hold)
            rest_seconds = 0.0
        finally:
            with suppress(Retryable), ledger.transaction() as connection:
                waits = holds.postpone(connection, hold, rest_seconds)
        return not waits

    def _finish(self, hold: Hold) -> None:
        """Finishes a job; everybody who looks at it reads that its storage is away."""
        ledger, job_id = self._reaper.ledger, int(hold.subject)
        teller = outages.Teller(f"{self._reaper.name}/{job_id}", socket.gethostname())
        try:
            finish.finish(ledger, job_id, self._reaper.settings, hold=hold)
        except StorageUnavailable as error:
            now = time.monotonic()
            began, told_at = self._waiting.get(hold.subject, (now, now))
            if now - told_at > outages.LAPSE_SECONDS:  # another reaper finished the job meanwhile
                began = now
            self._waiting[hold.subject] = began, now
            wait = outages.Wait(outages.Kind.STORAGE, job_id, now - began, kept_message(str(error)))
            with suppress(Retryable), ledger.transaction() as connection:
                outages.tell(connection, teller, [wait])
            raise
        if self._waiting.pop(hold.subject, None) is not None:
            with suppress(Retryable), ledger.transaction() as connection:
                outages.tell(connection, teller, [])
