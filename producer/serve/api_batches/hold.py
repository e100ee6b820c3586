"""A batch that a reaper holds while it works on the batch, however long a read or a write of a file takes."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from nightshift.common.errors import LeaseLost, Retryable
from nightshift.common.ledger import Ledger
from nightshift.producer.serve.ledger import api_batch_steps, files

log = structlog.get_logger(__name__)

HOLD_SECONDS = 60.0
"""How long a reaper has a batch to itself before it must say so again."""

SIGN_SECONDS = HOLD_SECONDS / 4
"""Pause between two signs of a reaper that works."""


class Hold:
    """What the work asks now and then: `check` raises LeaseLost once another reaper has the batch."""

    def __init__(self, ledger: Ledger, batch_id: str, who: str, file_ids: Sequence[str]) -> None:
        self._ledger, self._batch_id, self._who = ledger, batch_id, who
        self._file_ids = file_ids
        self._lost = False

    def check(self) -> None:
        """LeaseLost once another reaper has the batch, or the batch is over."""
        if self._lost:
            raise LeaseLost(f"another reaper has the batch {self._batch_id}")

    def renew(self) -> None:
        """Says that the reaper still works, and that the files which it writes are wanted."""
        with self._ledger.transaction() as connection:
            held = api_batch_steps.keep(connection, self._batch_id, self._who, HOLD_SECONDS)
            for file_id in self._file_ids:
                files.touch(connection, file_id)
        self._lost = not held


@contextmanager
def held(ledger: Ledger, batch_id: str, who: str, file_ids: Sequence[str] = ()) -> Iterator[Hold]:
    """Renews the lease of a batch from a thread until the block ends, and the signs of files that are
    on their way.
    """
    hold, done = Hold(ledger, batch_id, who, file_ids), threading.Event()

    def work() -> None:
        while not done.wait(SIGN_SECONDS):
            try:
                hold.renew()
            except Retryable as error:
                log.warning("hold_not_renewed", batch=batch_id, error=str(error))

    thread = threading.Thread(target=work, name=f"hold-{batch_id}", daemon=True)
    thread.start()
    try:
        yield hold
    finally:
        done.set()
        thread.join()
