"""The reaper: a small loop of leaderless duties; run two or more of them.

Each duty is one short transaction that is harmless when run twice; messages and files come after
COMMIT. A duty that fails is logged and tried again in the next round.
"""

import threading
import time
import uuid
from collections.abc import Callable

import structlog

from common.broker import Announcer
from common.errors import NightshiftError, Retryable
from common.ledger import Ledger, batches, dispatch, workers
from common.settings import Settings
from producer import dispatcher, finish

log = structlog.get_logger(__name__)

FINISH_HOLD_SECONDS = 60.0
"""For how long one reaper has a job's files to itself; a courtesy, not a fence."""

PRESSED_SPEEDUP = 10
"""How much sooner the next round comes while workers claim faster than rounds admit."""

SILENT_LEASES = 4
"""A child not seen for so many lease times is marked ended."""


class Reaper:
    """The duties of one reaper process, and what it remembers between rounds.

    `pressed` says that a queue ran low since the last round, so the next should come soon.
    """

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._name = f"r-{uuid.uuid4().hex[:8]}"
        self._announcer = Announcer(settings.broker_url) if settings.broker_url else None
        self._broker_silent_until = 0.0
        self._reap_from = 0.0
        self._failed = False
        self.pressed = False

    def round(self) -> None:
        """Every duty once."""
        self._failed = False
        for duty in (self._dispatch, self._reap, self._finish, self._tidy):
            self._do(duty)
        if self._failed:
            # Whoever could not renew during the outage gets a lease of time to do so.
            self._reap_from = time.monotonic() + self._settings.lease_seconds

    def close(self) -> None:
        """Lets the broker go."""
        if self._announcer is not None:
            self._announcer.close()

    def _do(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except NightshiftError as error:
            self._failed = True
            log.warning("duty_failed", duty=duty.__name__.strip("_"), error=str(error))
        except Exception:
            self._failed = True
            log.exception("duty_crashed", duty=duty.__name__.strip("_"))

    def _dispatch(self) -> None:
        with self._ledger.transaction() as connection:
            queues = dispatcher.admit(connection, self._settings.lease_seconds)
        self.pressed = any(queue.runs_low for queue in queues or ())
        for queue in queues or ():
            if queue.queued:
                self._announce(queue)

    def _announce(self, queue: dispatcher.Queue) -> None:
        """Hints only: a broker that is away costs a warning and is left alone for a while."""
        if self._announcer is None or time.monotonic() < self._broker_silent_until:
            return
        try:
            self._announcer.top_up(queue.pool, queue.engine_key, queue.queued)
        except Retryable as error:
            self._broker_silent_until = time.monotonic() + self._settings.poll_seconds
            log.warning("announce_failed", error=str(error))

    def _reap(self) -> None:
        if time.monotonic() < self._reap_from:
            return
        with self._ledger.transaction() as connection:
            if dispatch.started_within(connection, self._settings.lease_seconds):
                return
            lost = batches.reap(connection)
        if lost:
            log.warning("leases_reaped", batches=lost)

    def _finish(self) -> None:
        with self._ledger.transaction() as connection:
            over = dispatch.finishable(connection, self._name, FINISH_HOLD_SECONDS)
        for job_id in over:
            finish.finish(self._ledger, job_id)

    def _tidy(self) -> None:
        with self._ledger.transaction() as connection:
            dispatch.fold_counters(connection)
            workers.end_silent(connection, SILENT_LEASES * self._settings.lease_seconds)


def run(ledger: Ledger, settings: Settings, stop: threading.Event) -> None:
    """Rounds until `stop` is set."""
    reaper = Reaper(ledger, settings)
    log.info("reaper_started")
    while not stop.is_set():
        reaper.round()
        stop.wait(settings.dispatch_seconds / (PRESSED_SPEEDUP if reaper.pressed else 1))
    reaper.close()
    log.info("reaper_ended")
