"""What a reaper does beside its rounds for the HTTP API: batches are validated, expired, finalized, and
webhooks sent.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.producer.serve.ledger import api_batch_steps

PAUSE_SECONDS = 0.5
"""Pause between two looks for batches."""

LEAVE_SECONDS = 5.0
"""Time that the running duties get together when the reaper is asked to stop."""

MOST_EXPIRED = 100
"""Batches that one transaction expires."""

SWEEP_SECONDS = 60.0
"""Pause between two sweeps of files that nobody wants."""

RunDuty = Callable[[Callable[[], object]], bool]


class BatchDuties:
    """The threads of one reaper for batches; none where the operator names no store.

    A duty that is cut off is taken up by another reaper, or by the next start.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        name: str,
        run_duty: RunDuty,
        delete: Callable[[Job], object],
    ) -> None:
        self._ledger, self._settings, self._name = ledger, settings, name
        self._run_duty, self._delete = run_duty, delete
        self._threads: list[threading.Thread] = []
        self._sweep_at: dict[str, float] = {}

    def start(self, stop: threading.Event) -> None:
        """Works in threads until `stop` is set."""
        if self._settings.serve_store is None:
            return
        from nightshift.producer.serve.api_batches import sweep
        from nightshift.producer.serve.api_batches.finalize import finalize_once
        from nightshift.producer.serve.api_batches.validate import validate_once
        from nightshift.producer.serve.api_batches.webhooks import send_once

        given = (self._ledger, self._settings, self._name)

        for duty in (
            partial(validate_once, *given),
            partial(finalize_once, *given),
            partial(send_once, self._ledger, self._settings),
            self._expire,
            # Files of a large job may take long, and the time of batches is over meanwhile.
            partial(self._sweep, partial(sweep.sweep_once, self._ledger), "files"),
            partial(self._sweep, partial(sweep.sweep_jobs, self._ledger, self._delete), "jobs"),
        ):
            thread = threading.Thread(target=self._work, args=(duty, stop), daemon=True)
            thread.start()
            self._threads.append(thread)

    def leave(self) -> None:
        """Waits for the running duties, LEAVE_SECONDS at most each. `stop` is set."""
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)

    def _work(self, duty: Callable[[], bool], stop: threading.Event) -> None:
        """Does the duty again and again, at once while there is something to do."""
        done = [False]

        def once() -> None:
            done[0] = duty()

        while not stop.is_set():
            if not (self._run_duty(once) and done[0]):
                stop.wait(PAUSE_SECONDS)

    def _expire(self) -> bool:
        """Ends the time of batches."""
        with self._ledger.transaction() as connection:
            more = len(api_batch_steps.expire(connection, MOST_EXPIRED)) == MOST_EXPIRED
            api_batch_steps.cancel_strays(connection, MOST_EXPIRED)
        return more

    def _sweep(self, sweep: Callable[[], bool], what: str) -> bool:
        """Sweeps now and then, and on while there is something to sweep."""
        if time.monotonic() < self._sweep_at.get(what, 0.0):
            return False
        more = sweep()
        if not more:
            self._sweep_at[what] = time.monotonic() + SWEEP_SECONDS
        return more
