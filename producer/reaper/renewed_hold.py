"""A hold that is renewed from a thread while its holder works, however long a read or a write of a file takes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from nightshift.common.errors import LeaseLost, Retryable
from nightshift.common.ledger import Connection, Ledger, holds
from nightshift.common.ledger.holds import Hold

log = structlog.get_logger(__name__)

SIGNS_A_HOLD = 4
"""How often a hold is renewed in the time that it lasts."""


class Renewed:
    """A hold that a thread renews. The work calls `check` now and then, and ends once the hold is gone."""

    def __init__(self, ledger: Ledger, hold: Hold, beside: Callable[[Connection], object]) -> None:
        self._ledger, self.hold, self._beside = ledger, hold, beside
        self._lost = False

    def check(self) -> None:
        """Raises LeaseLost if the last renewal found that the hold is gone: another process took the subject, or
        the hold was ended because no work is left.
        """
        if self._lost:
            raise LeaseLost(f"another process has the {self.hold.kind} {self.hold.subject}")

    def renew(self) -> None:
        """Renews the hold, and notes when it is gone."""
        with self._ledger.transaction() as connection:
            is_held = holds.renew(connection, self.hold)
            self._beside(connection)
        self._lost = not is_held


@contextmanager
def renewed(
    ledger: Ledger, hold: Hold, beside: Callable[[Connection], object] = lambda _: None
) -> Iterator[Renewed]:
    """Renews the hold until the block ends; `beside` writes further signs of life in the same transaction."""
    work, done = Renewed(ledger, hold, beside), threading.Event()
    pause = holds.SECONDS[hold.kind] / SIGNS_A_HOLD

    def sign() -> None:
        while not done.wait(pause):
            try:
                work.renew()
            except Retryable as error:
                log.warning("hold_not_renewed", kind=hold.kind, of=hold.subject, error=str(error))

    thread = threading.Thread(target=sign, name=f"{hold.kind}-{hold.subject}", daemon=True)
    thread.start()
    try:
        yield work
    finally:
        done.set()
        thread.join()
