"""What a reaper does beside its rounds for the HTTP API: batches are validated, expired, finalized, and
webhooks sent.
"""

import threading
from collections.abc import Callable
from functools import partial

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.gateway import batch_steps
from nightshift.common.settings import Settings

PAUSE_SECONDS = 0.5
"""Pause between two looks for batches."""

LEAVE_SECONDS = 5.0
"""Time that the running duties get together when the reaper is asked to stop."""

MOST_EXPIRED = 100
"""Batches that one transaction expires."""

RunDuty = Callable[[Callable[[], object]], bool]


class BatchDuties:
    """The threads of one reaper for batches; none where the operator names no store.

    A duty that is cut off is taken up by another reaper, or by the next start.
    """

    def __init__(self, ledger: Ledger, settings: Settings, name: str, run_duty: RunDuty) -> None:
        self._ledger, self._settings, self._name = ledger, settings, name
        self._run_duty = run_duty
        self._threads: list[threading.Thread] = []

    def start(self, stop: threading.Event) -> None:
        """Works in threads until `stop` is set."""
        if self._settings.serve_store is None:
            return
        from nightshift.producer.batch_api.finalize import finalize_once
        from nightshift.producer.batch_api.validate import validate_once
        from nightshift.producer.batch_api.webhooks import send_once

        given = (self._ledger, self._settings, self._name)
        for duty in (
            partial(validate_once, *given),
            partial(finalize_once, *given),
            partial(send_once, self._ledger, self._settings),
            self._expire,
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
        with self._ledger.transaction() as connection:
            return len(batch_steps.expire(connection, MOST_EXPIRED)) == MOST_EXPIRED
