"""A ledger whose `transaction` is always the same open transaction."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nightshift.common.ledger.connection import Connection, Ledger, wrapped_errors


class OneTransaction(Ledger):
    """Runs code that takes a ledger within one open transaction. `transaction` yields that transaction, to one thread at
    a time, and neither commits nor rolls back.
    """

    def __init__(self, ledger: Ledger, connection: Connection) -> None:
        self.url, self.place = ledger.url, ledger.place
        self._waits, self.is_abandoned = ledger._waits, ledger.is_abandoned
        self._connection = connection
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the open transaction. Raises what `Ledger.transaction` raises."""
        with self._turn, wrapped_errors(self.place):
            yield self._connection

    def close(self) -> None:
        """Do nothing: the caller that opened the transaction ends it."""
